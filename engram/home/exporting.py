"""Exports a model of a run: a client's own, or the common one."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from engram.cli.arguments import arguments
from engram.core.slots import is_known, unknown
from engram.data.federated import model_for
from engram.data.schema.columns import Kind, Schema
from engram.data.tables.tables import family_of
from engram.home.card import Evidence, packaged
from engram.home.evidence import of_coefficients, of_network
from engram.home.exported import Exported, Form, Format, Package, check_format
from engram.home.run_models import Learned
from engram.home.serving import RECALLS, form_of, without_medians
from engram.home.tables import coefficients_of
from engram.networks.export_modules import Recalling, layered
from engram.scoring.tasks import TASKS
from engram.settings.errors import DataError, Refused, refusals, told_with
from engram.tables.federation.coefficients import Coefficients

_OWN_UNITS = "It takes columns that are standardized by their client's own training rows."


def package_of(learned: Learned, client: int | None) -> Package:
    """Returns a client's model of a finished run, or the common one.

    Raises:
        Refused: If the run is not finished, or has no such model, or its memories or rows are
            elsewhere.
    """
    if learned.record.results is None:
        raise Refused(f"{learned.record.folder} is not finished: resume it first")
    return _network(learned, client) if learned.trains_network else _table(learned, client)


def _network(learned: Learned, client: int | None) -> Package:
    e, rows, kind = learned.experiment, _rows(learned), learned.kind
    if client is None:
        module, rows = common_model(learned), f"{rows}, {e.num_clients} clients"
    else:
        module = learned.module(learned.personal(client), learned.network_of(client), client)
        kind = learned.kind_of(client)
        rows = f"{rows}: rows of client {learned.called(client)}, and others'"
    notes = notes_on(learned, module, common=client is None)
    schema = schema_here(learned, client if e.partition == "natural" else None)
    found = of_network(learned, module, client, schema)
    known: dict[str, Any] = {"classes": kind.class_names, "kind": kind._replace(schema=schema)}
    exported = exported_as(learned, form_of(module), client, **known)
    return with_card(learned, exported, module, rows, found, notes)


def _rows(learned: Learned) -> str:
    """Returns the rows that a network has learned from, in words."""
    e, said = learned.experiment, learned.rows_in_words
    return f"{said}, partition {e.partition}" if said == e.source.described else said


def notes_on(learned: Learned, module: nn.Module, *, common: bool) -> list[str]:
    """Returns notes for the users of a network."""
    notes = [RECALLS] if isinstance(module, Recalling) else []
    if common and not is_known(learned.newcomers(unknown(learned.method.client.start))):
        notes.append("Some of its parameters are each client's own, and are here as they began.")
    if common and learned.standardizes_by_client:
        notes.append(_OWN_UNITS)
    return notes


def schema_here(learned: Learned, owner: int | None) -> Schema | None:
    """Returns the schema of inputs, with the client's values for missing ones.

    Where the table is elsewhere, that is unknown: then the schema refuses missing values.
    """
    schema = learned.kind.schema
    if (elsewhere := without_medians(schema)) == schema:
        return schema
    try:
        return learned.data.schema_of(owner)
    except DataError:  # the rows are on the nodes alone, or were those of another process
        here = learned.checkpoint.memories is not None
        if here and not learned.experiment.source.in_memory:
            raise
        return elsewhere


def common_model(learned: Learned, kind: Kind | None = None) -> nn.Module:
    """Returns the model that all clients share, for rows of the run's kind or of another one.

    Raises:
        Refused: If there are several, of which a client's rows choose one.
    """
    network = learned.network if kind is None else model_for(learned.experiment, kind)
    return learned.module(learned.common, network, 0)


def exported_as(learned: Learned, form: Form, client: int | str | None, **more: Any) -> Exported:
    """Returns the description of a run's model.

    Args:
        learned: What the run has learned.
        form: The model's form.
        client: Whose it is, by number or name; None for the common one.
        more: ``classes`` and ``kind`` of ``Exported``, and what differs from the run's.
    """
    e = learned.experiment
    name = learned.called(client) if isinstance(client, int) else client or ""
    after = ", fine-tuned" if learned.tuned else ""
    known = {
        "what": f"personal model of {name}{after}" if name else "common model",
        "settings": learned.record.config["settings"],
        "form": form,
        "outputs": TASKS[e.task].targets if learned.trains_network else "values",
        "client": name,
        "source": learned.record.config["sources"][-1],
    }
    return Exported(**known | more)


def _table(learned: Learned, client: int | None) -> Package:
    found = coefficients_of(learned, client)
    return of_table(learned, found, client, of_coefficients(learned, found, client))


def of_table(
    learned: Learned,
    found: Coefficients,
    client: int | str | None,
    evidence: Evidence,
    notes: Sequence[str] = (),
) -> Package:
    """Returns a model of columns, with its card.

    Args:
        learned: What the run has learned.
        found: The model.
        client: Whose it is, by number or name; None for the common one.
        evidence: What rows say of it.
        notes: What its users should know.
    """
    e = learned.experiment
    module = layered(found.state, family_of(e))
    kind = Kind(schema=found.schema, classes=learned.kind.classes)
    exported = exported_as(learned, "layers", client, kind=kind, classes=found.outputs)
    rows = learned.rows_in_words
    return with_card(learned, exported, module, rows, evidence, notes, found.table)


def with_card(
    learned: Learned,
    exported: Exported,
    module: nn.Module,
    rows: str,
    evidence: Evidence,
    notes: Sequence[str],
    table: str = "",
) -> Package:
    """Returns a model with its card; for the arguments see ``packaged``."""
    config, results = learned.record.config, learned.record.results or {}
    if why := learned.record.other_rows:
        notes = [*notes, f"{why}: what is said of rows is true of those that are there now."]
    versions = ", ".join(f"{name} {found}" for name, found in config["versions"].items())
    run = f"{learned.record.folder.name}, {learned.when}"
    made = {"run": run, "engine": config["engine"], "versions": versions}
    return packaged(
        exported, module, evidence, made=made, rows=rows, privacy=results, notes=notes, table=table
    )


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
    return written(learned, package_of(learned, number), folder, check_format(format_))


def written(learned: Learned, package: Package, folder: Path, format_: Format) -> Written:
    """Writes a model into a folder, which the run's record names first: see ``withdrawal_of``.

    Raises:
        Refused: One of them cannot be written.
    """
    row = {"round": learned.checkpoint.server_round, "folder": str(folder.absolute())}
    try:
        learned.record.exports.append(row | {"what": package.exported.what})
    except OSError as error:
        path = learned.record.exports.path
        raise Refused(
            f"{path}, which names exports, cannot be written: {error.strerror}"
        ) from error
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
