"""Models of methods that train no network of the user's: coefficients, and users' networks."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from engram.client.memory import RamStore
from engram.core.arrays import Array, Ints
from engram.core.streams import Stream, generator
from engram.core.types import Params
from engram.data.new_rows import NewRows, read_new_rows
from engram.data.schema.columns import Column, Schema
from engram.data.tables.raw_tables import labels_of
from engram.data.tables.tables import TableData, family_of, target_of
from engram.home.card import Evidence, ScoreEstimate
from engram.home.evidence import intervals_on, of_coefficients
from engram.home.prediction_intervals import Interval
from engram.home.run_models import Learned
from engram.home.serving import without_medians
from engram.networks.export_modules import layered
from engram.settings.errors import DataError, Refused, one_line
from engram.tables.federation.coefficients import Coefficients, linear, remembered
from engram.tables.federation.host import TableSites
from engram.tables.federation.molar import Molar
from engram.tables.federation.molar_messages import read_shared, read_told
from engram.tables.site import Rows
from engram.wire.wire import to_record

FOLDS: Final = 5  # number of folds of cross-validation on a newcomer's rows

UNLABELED: Final = (
    "The rows have no targets: it is the common model, and nothing has been learned from them."
)
"""The note of a model for a newcomer without targets."""


def coefficients_of(learned: Learned, client: int | None) -> Coefficients:
    """Returns the model of a client, or the common one.

    Raises:
        Refused: If there is none.
    """
    if client is None:
        return _common(learned)
    memory = learned.memory(client)
    if not memory:
        called = learned.called(client)
        raise Refused(f"client {called} keeps no model: it had no part in the run")
    found = remembered(learned.experiment, learned.kind, memory)
    return found._replace(schema=_schema(learned, found, client))


def _schema(learned: Learned, found: Coefficients, client: int | None) -> Schema:
    """Returns a model's schema, with the client's values for missing ones.

    Where the table is elsewhere, that is unknown: then the schema refuses missing values.
    """
    try:
        median = found.schema.missing == "median"
        return learned.tables.schema_of(client) if median else found.schema
    except DataError:
        return without_medians(found.schema) or found.schema


def _common(learned: Learned) -> Coefficients:
    shared: dict[str, Any] | None = (learned.record.results or {}).get("shared")
    if shared is None:
        raise Refused(f"{learned.experiment.method} has no common model: export a client's")
    if None in shared["coef"]:
        raise Refused("the sites share no estimate of some parameters: export a client's instead")
    some = [key for key in shared if key in ("low", "high")]
    limits = {key: torch.tensor([*map(_number, shared[key])]) for key in some}
    coef, schema = torch.tensor(shared["coef"], dtype=torch.float64), learned.kind.schema
    found = linear(schema or Schema(()), shared["names"], coef, limits)
    outputs = list(learned.kind.classes[1:]) or found.outputs
    return found._replace(schema=_schema(learned, found, None), outputs=outputs)


def _number(value: float | None) -> float:
    return torch.nan if value is None else value


def transferred(learned: Learned, path: Path) -> tuple[Coefficients, Evidence, list[str]]:
    """Returns a newcomer's model, its evidence, and notes for its card.

    Raises:
        Refused: If the method is none of regressions, or the rows cannot be used.
    """
    if learned.experiment.own.plug_in != Molar.plug_in:
        raise Refused(
            f"{learned.experiment.method} learns by acting, and adapts to no rows: a newcomer "
            "joins its federation instead"
        )
    e = learned.experiment
    rows = read_new_rows(path, learned.kind, e.to_config(), of_one_client=True)
    if not rows.size:
        raise DataError(f"{path} must hold some rows")
    targets = _targets(path, rows, learned)
    if targets is None:
        common = _common(learned)
        return common, of_coefficients(learned, common, None), [UNLABELED]
    assert isinstance(rows.x, Tensor)  # for mypy: rows of columns are one matrix
    assert rows.schema  # for mypy: and these have names
    table, x, y = Rows(rows.x.numpy(), targets), rows.x, torch.from_numpy(targets)
    every = np.arange(rows.size)
    memory, _ = _at_a_site(learned, table, every, None)
    order = generator(e.seed, Stream.FOLDS).permutation(rows.size)
    folds = np.array_split(order, min(FOLDS, len(order))) if len(order) > 1 else []
    sites = [_at_a_site(learned, table, np.sort(np.setdiff1d(every, fold)), fold) for fold in folds]
    losses = [own for _, own in sites]
    sizes = [len(fold) for fold in folds]
    called = {
        "adapted, cross-validated": "loss-personal",
        "these rows alone, cross-validated": "loss-own",
        "the common model": "loss-shared",
    }
    scores = {
        what: [
            ScoreEstimate("loss", float(np.average([own[name] for own in losses], weights=sizes)))
        ]
        for what, name in called.items()
        if losses
    }
    intervals: list[Interval] = []
    if folds:
        means = [_means(learned, sites[k][0], x[fold]) for k, fold in enumerate(folds)]
        intervals = intervals_on(e, torch.cat(means), y[np.concatenate(folds)])
    found = Evidence.of_table(scores, table.x, rows.schema, intervals)
    return remembered(e, learned.kind._replace(schema=rows.schema), memory), found, []


def _targets(path: Path, rows: NewRows, learned: Learned) -> Array | None:
    """Returns the targets of a newcomer's rows; None if they have none."""
    if "y" not in rows.targets:
        return None
    e, classes = learned.experiment, learned.kind.classes
    # Only a run of named classes says which of two texts is 1.
    target = Column(e.target_column, "category" if classes else "number", classes, role="target")
    y, names = rows.targets["y"], list(map(str, rows.targets.get("y_names", ())))
    if not isinstance(y, np.ndarray):
        y = labels_of(path, target, y)
    elif target.name in names and y.ndim == 2:
        y = y[:, names.index(target.name)]
    found, _ = target_of(path, y, target, family_of(e) if classes else "linear")
    if len(found) != rows.size:
        raise DataError(f"{path}: y must have {rows.size} rows, as x has, got {len(found)}")
    return found


def _means(learned: Learned, memory: Params, x: Tensor) -> Tensor:
    found = remembered(learned.experiment, learned.kind, memory)
    with torch.no_grad():
        means: Tensor = layered(found.state, learned.experiment.of(Molar).family)(x)
    return means


def _at_a_site(
    learned: Learned, table: Rows, rows: Ints, held_out: Ints | None
) -> tuple[Params, dict[str, float]]:
    """Has a site compute its coefficients; returns its memory, and losses on held-out rows."""
    e = learned.experiment
    train = [Rows(table.x[rows], table.y[rows])]
    test = None if held_out is None else Rows(table.x[held_out], table.y[held_out])
    store = RamStore()
    data = TableData([*train], [test], learned.kind.schema or Schema(()))
    site = TableSites(e, data, store)
    record = to_record(learned.checkpoint.model)
    shared, half = read_shared(record, len(site.names))
    told = read_told(record, len(site.names)) if e.of(Molar).sharing == "adaptive" else None
    try:
        losses = site.personalize(0, shared, half, server_round=1, told=told)
    except ValueError as error:
        raise DataError(f"the rows cannot be used: {one_line(str(error))}") from error
    return store.load(0, before=2) or {}, losses
