"""Exports a model of a run: a client's own, or the common one."""

import re
from pathlib import Path
from typing import NamedTuple

from torch import nn

from engram.cli.arguments import arguments
from engram.core.slots import is_known, unknown
from engram.data.federated import model_for
from engram.data.schema.columns import Kind, Schema
from engram.home.card import of_network, of_table
from engram.home.evidence import evidence_of_network, of_coefficients
from engram.home.exported import Format, Package, check_format
from engram.home.run_models import Learned
from engram.home.serving import RECALLS, without_medians
from engram.home.tables import coefficients_of
from engram.networks.export_modules import Recalling
from engram.runs.writer import RunWriter
from engram.settings.errors import DataError, Refused, refusals, told_with

_OWN_UNITS = "It takes columns that are standardized by their client's own training rows."


def package_of(learned: Learned, client: int | None) -> Package:
    """Returns the model that serves a client, or the common one.

    Raises:
        Refused: If there is no such model, or its memories or rows are elsewhere.
    """
    if not learned.trains_network:
        found = coefficients_of(learned, client)
        kind = Kind(schema=found.schema, classes=learned.kind.classes)
        evidence = of_coefficients(learned, found, client)
        return of_table(learned.origin(client), found, kind, evidence)
    if client is None:
        module, kind = common_model(learned), learned.kind
    else:
        module = learned.module(learned.personal(client), learned.network_of(client), client)
        kind = learned.kind_of(client)
    notes = notes_on(learned, module, common=client is None)
    kind = kind._replace(schema=schema_here(learned, client))
    evidence = evidence_of_network(learned, module, client, kind.schema)
    return of_network(learned.origin(client), module, kind, evidence, notes)


def notes_on(learned: Learned, module: nn.Module, *, common: bool) -> list[str]:
    """Returns notes for the users of a network."""
    notes = [RECALLS] if isinstance(module, Recalling) else []
    if common and not is_known(learned.newcomers(unknown(learned.method.client.start))):
        notes.append("Some of its parameters are each client's own, and are here as they began.")
    if common and learned.standardizes_by_client:
        notes.append(_OWN_UNITS)
    return notes


def schema_here(learned: Learned, client: int | None) -> Schema | None:
    """Returns the schema of inputs, with the client's values for missing ones.

    Where the table is elsewhere, that is unknown: then the schema refuses missing values.
    """
    schema = learned.kind.schema
    if (elsewhere := without_medians(schema)) == schema:
        return schema
    try:
        return learned.data.schema_of(client if learned.by_task else None)
    except DataError:
        if not learned.may_lack_rows:
            raise
        return elsewhere


def common_model(learned: Learned, kind: Kind | None = None) -> nn.Module:
    """Returns the model that all clients share, for rows of a kind.

    Raises:
        Refused: If there are several, of which a client's rows choose one.
    """
    network = learned.network if kind is None else model_for(learned.experiment, kind)
    return learned.module(learned.common, network, 0)


class Written(NamedTuple):
    """A model that has been written.

    Attributes:
        folder: Where.
        package: The model.
    """

    folder: Path
    package: Package


def exported_into(
    learned: Learned, client: int | str | None, out: str | Path | None, format_: str
) -> Written:
    """Writes a model of a finished run into a new folder; see ``package_of``.

    Args:
        learned: What the run has learned.
        client: Whose model, by number or name; None for the common one.
        out: The folder; None for one that is named for the client.
        format_: See ``engram.home.exported.FORMATS``.
    """
    given, wrong = arguments(out=out)
    wrong += refusals(lambda: check_format(format_))
    number = told_with(wrong, lambda: None if client is None else learned.number(client))
    folder = free_folder(given.out, "common" if number is None else learned.called(number))
    _ = learned.record.finished  # refused before anything is loaded
    return written(learned, package_of(learned, number), folder, check_format(format_))


def written(learned: Learned, package: Package, folder: Path, format_: Format) -> Written:
    """Writes a model into a folder, which the run's record names first: see ``withdrawal_of``.

    Raises:
        Refused: One of them cannot be written.
    """
    record = RunWriter(learned.record.folder)
    record.append_export(learned.checkpoint.server_round, folder, package.exported.what)
    package.write(folder, format_)
    return Written(folder, package)


def free_folder(out: Path | None, name: str) -> Path:
    """Returns the folder that a model is written to; by default one that is named for its owner.

    Raises:
        Refused: If something is there already.
    """
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "client"
    plain = f"client-{plain}" if plain.isdecimal() else plain
    folder = Path(f"{plain}-model") if out is None else out
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} is there already: give out another folder")
    return folder
