"""Personalized federated learning: every client gets its own model, and remembers it.

``engram.simulate`` runs an experiment on data in memory; ``engram.load_run`` opens one that was
run. ``engram.method`` registers a method of your own, whose parts stand in ``engram.core``. The
other families' learners stand in ``engram.tables``, ``engram.online`` and ``engram.bandits``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engram.core.process_modes import own_modes
from engram.lazy import attach

if TYPE_CHECKING:
    from engram.api import Run as Run
    from engram.api import load_run as load_run
    from engram.api import methods as methods
    from engram.api import simulate as simulate
    from engram.attack.audit.report import audit as audit
    from engram.compare.comparison_api import Comparison as Comparison
    from engram.compare.comparison_api import compare as compare
    from engram.compare.comparison_api import load_comparison as load_comparison
    from engram.compare.ranks import ranks as ranks
    from engram.data.augmentations import augmentation as augmentation
    from engram.data.source import data as data
    from engram.guards.registry import guard as guard
    from engram.home.exported import load_model as load_model
    from engram.networks.optimizers import optimizer as optimizer
    from engram.networks.optimizers import schedule as schedule
    from engram.networks.registry import model as model
    from engram.scoring.metrics import metric as metric
    from engram.scoring.tasks import loss as loss
    from engram.settings.experiment import Experiment as Experiment
    from engram.settings.network import method as method
    from engram.simulations.apps import make_client_app as make_client_app
    from engram.simulations.apps import make_server_app as make_server_app
    from engram.tune.front import Tuned as Tuned
    from engram.tune.front import tune as tune

_get, __dir__, __all__ = attach(__name__, __file__)


def __getattr__(name: str) -> Any:
    with own_modes():
        plug_ins = import_module("engram.settings.plugins")
        if name in ("LocalMethod", "LocalRule", "NetworkMethod"):
            words = f"engram.{name} must be replaced by engram.method: {plug_ins.MOVING}"
            raise ImportError(words, name=__name__)
        plug_ins.load_plugins()
        return _get(name)
