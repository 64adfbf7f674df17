"""Functions that do the work of commands, imported when a command gets to them.

They load torch or matplotlib, which takes seconds. Help and refusals take tenths of a second, since
commands check what they are given first, and look these up here: ``work.simulate(...)``.
"""

# ruff: noqa: I001, PLC0414 - names are given on, those of a module together

from typing import TYPE_CHECKING

from engram.lazy import attach
from engram.settings.process_starts import end_at_once

if TYPE_CHECKING:
    from engram.attack.audit.report import tables as tables
    from engram.client.disk_memory import DiskStore as DiskStore
    from engram.client.hosts import Opening as Opening, host_of as host_of
    from engram.client.memory import RamStore as RamStore
    from engram.client.round_log import in_words as in_words
    from engram.client.training_description import read_training as read_training
    from engram.client.training_folders import kept as kept, listed as listed
    from engram.compare.comparison_run import begin_comparison as begin_comparison, go_on as go_on
    from engram.compare.paper_tables import table_for_paper as table_for_paper
    from engram.compare.plots import (
        has_classes as has_classes,
        plot_data as plot_data,
        row_counts as row_counts,
    )
    from engram.compare.reports.base import show_runs as show_runs
    from engram.compare.reports.figure_files import draw_files as draw_files, sheet_of as sheet_of
    from engram.compare.suite.benchmark import (
        begin_benchmark as begin_benchmark,
        run_benchmark as run_benchmark,
        show_benchmark as show_benchmark,
    )
    from engram.data.load_federation import federated_data as federated_data
    from engram.data.loading import follow_rows as follow_rows
    from engram.data.schema.proposal import described as described
    from engram.data.tables.table_summary import site_schema as site_schema
    from engram.data.tables.tables import table_data as table_data
    from engram.home.class_scores import show_classes as show_classes
    from engram.home.exporting import check_format as check_format
    from engram.home.exporting import exported_into as exported_into
    from engram.home.exporting import adapted_into as adapted_into
    from engram.home.node_export import remembered_package as remembered_package
    from engram.home.onnx_sandbox import Limits as Limits
    from engram.home.predicting import predict as predict
    from engram.link.server.serving import serve as serve
    from engram.server.status import Member as Member, members as members
    from engram.server.stopping import stop_run as stop_run
    from engram.settings.experiment import default_config as default_config
    from engram.settings.families import METHODS as METHODS, family as family
    from engram.settings.fields import called_here as called_here, key_of as key_of
    from engram.settings.method_for_data import forecast as forecast
    from engram.simulations.deployed import run_deployed as run_deployed
    from engram.simulations.engine import simulate as simulate
    from engram.simulations.loopback import LoopbackFederation as LoopbackFederation
    from engram.simulations.ray_rounds import Cluster as Cluster
    from engram.simulations.replayed_participation import Participation as Participation
    from engram.sites.agreement import summary as summary
    from engram.sites.evaluate_at_sites import Visited as Visited, given_model as given_model
    from engram.sites.release.site_part import check_released_at_site as check_released_at_site
    from engram.sites.schema_survey import (
        agreed as agreed,
        answer_of_nodes as answer_of_nodes,
        checked as checked,
        schema_of as schema_of,
        survey_deployed as survey_deployed,
        write_schema as write_schema,
    )
    from engram.sites.statistics import (
        CurvePoint as CurvePoint,
        Statistics as Statistics,
        curves as curves,
        statistics as statistics,
    )
    from engram.sites.status import site_status as site_status
    from engram.strategies.running.base import STRATEGIES as STRATEGIES
    from engram.studies.command import show_study as show_study
    from engram.studio.app import server_for as server_for
    from engram.studio.pages.page import page as page
    from engram.tune.command import (
        new_tuning as new_tuning,
        run_tuning as run_tuning,
        show_tuning as show_tuning,
        with_best as with_best,
    )
    from engram.tune.folder import Tuning as Tuning
    from engram.wire.tensors import tensors_to_bytes as tensors_to_bytes

__getattr__, __dir__, __all__ = attach(__name__, __file__, within=end_at_once)
