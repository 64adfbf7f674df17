"""Models of methods that train no network of the user's: coefficients, and users' networks."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from engram.bandits.federation.meta_ban import MetaBan
from engram.client.memory import RamStore
from engram.core.arrays import Array, Ints
from engram.core.streams import Stream, generator
from engram.core.types import Params
from engram.data.new_rows import NewRows, read_new_rows
from engram.data.schema.columns import Column, Kind, Schema
from engram.data.tables.raw_tables import labels_of
from engram.data.tables.tables import TableData, family_of, table_data, target_of
from engram.home.card import FOLDS, UNLABELED, Evidence, ScoreEstimate, mean_of, packaged
from engram.home.evidence import intervals_on
from engram.home.exported import Exported, Package
from engram.home.learned import MODELS, Learned, Models
from engram.home.prediction_intervals import Interval
from engram.home.serving import without_medians
from engram.networks.export_modules import layered
from engram.settings.errors import DataError, Refused, one_line
from engram.settings.experiment import Experiment
from engram.tables.families import FAMILIES
from engram.tables.federation.coefficients import Coefficients, linear, remembered
from engram.tables.federation.host import TableSites
from engram.tables.federation.molar import Molar, MolarBandit
from engram.tables.federation.molar_messages import read_shared, read_told
from engram.tables.site import Rows
from engram.tables.survival.federation.cox import Cox

_ADAPTED: Final = (
    "adapted, cross-validated",
    "these rows alone, cross-validated",
    "the common model",
)
_LOSSES: Final = ("loss-personal", "loss-own", "loss-shared")  # a site's, of the same


class LearnedTables(Learned):
    """The models of a run of tables."""

    @cached_property
    def tables(self) -> TableData:
        """The clients' tables.

        Raises:
            DataError: If they cannot be read, or are others: nodes may have had data of their own.
        """
        found = table_data(self.experiment)
        if self.record.on_nodes:
            sizes = [len(test.y) if test else 0 for test in found.test]
            self._check_rows("rows", sizes, alike=[*self.kind.columns] == found.columns)
        return found

    def _check_data(self) -> None:
        if self.experiment.own.plug_in in (Molar.plug_in, Cox.plug_in):
            _ = self.tables


def package_of(learned: LearnedTables, client: int | None) -> Package:
    """Returns a client's coefficients, or the common ones, with their card.

    Raises:
        Refused: If there are none, or its memories are elsewhere.
    """
    found = coefficients_of(learned, client)
    return package_table(learned, client, found, of_coefficients(learned, found, client))


def adapted_package(learned: LearnedTables, path: Path, name: str) -> Package:
    """Returns coefficients for a client that never took part, by its rows, with their card."""
    return package_table(learned, name, *transferred(learned, path))


def package_table(
    learned: LearnedTables,
    client: int | str | None,
    found: Coefficients,
    evidence: Evidence,
    notes: Sequence[str] = (),
) -> Package:
    """Packages the model of a table's columns."""
    origin, module = learned.origin(client), layered(found.state, family_of(learned.experiment))
    kind = Kind(schema=found.schema, classes=learned.kind.classes)
    about = "values", found.outputs, origin.client, origin.source
    exported = Exported(origin.what, origin.settings, kind, "layers", *about)
    return packaged(origin, exported, module, evidence, notes, found.table)


def coefficients_of(learned: LearnedTables, client: int | None) -> Coefficients:
    """Returns the model of a client, or the common one.

    Raises:
        Refused: If there is none.
    """
    if client is None:
        return _common(learned)
    found = remembered(learned.experiment, learned.kind, memory_of(learned, client))
    return found._replace(schema=schema_of(learned, found.schema, client))


def memory_of(learned: LearnedTables, client: int) -> Params:
    """Returns a client's coefficients, by its memory.

    Raises:
        Refused: If it is nothing.
    """
    memory = learned.memory(client)
    if not memory:
        called = learned.called(client)
        raise Refused(f"client {called} keeps no model: it had no part in the run")
    return memory


def schema_of(learned: LearnedTables, schema: Schema, client: int | None) -> Schema:
    """Returns a model's schema, with the client's values for missing ones.

    Where the table is elsewhere, that is unknown: then the schema refuses missing values.
    """
    try:
        return learned.tables.schema_of(client) if schema.missing == "median" else schema
    except DataError:
        return without_medians(schema) or schema


def _common(learned: LearnedTables) -> Coefficients:
    shared: dict[str, Any] | None = (learned.record.results or {}).get("shared")
    if shared is None:
        raise Refused(f"{learned.experiment.method} has no common model: export a client's")
    if None in shared["coef"]:
        raise Refused("the sites share no estimate of some parameters: export a client's instead")
    some = [key for key in shared if key in ("low", "high")]
    limits = {k: torch.tensor([torch.nan if v is None else v for v in shared[k]]) for k in some}
    coef, schema = torch.tensor(shared["coef"], dtype=torch.float64), learned.kind.schema
    found = linear(schema or Schema(()), shared["names"], coef, limits)
    outputs = list(learned.kind.classes[1:]) or found.outputs
    return found._replace(schema=schema_of(learned, found.schema, None), outputs=outputs)


def transferred(learned: LearnedTables, path: Path) -> tuple[Coefficients, Evidence, list[str]]:
    """Returns a newcomer's model, its evidence, and notes for its card.

    Raises:
        Refused: If the method is none of regressions, or the rows cannot be used.
    """
    if learned.experiment.own.plug_in != Molar.plug_in:
        what = "learns by acting, and adapts to no rows: a newcomer joins its federation instead"
        raise Refused(f"{learned.experiment.method} {what}")
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
    scores: dict[str, list[ScoreEstimate]] = {}
    intervals: list[Interval] = []
    if folds:
        losses = [
            _row_losses(e, site, Rows(table.x[fold], targets[fold]))
            for site, fold in zip(sites, folds, strict=True)
        ]
        for what, each in zip(_ADAPTED, np.concatenate(losses, axis=1), strict=True):
            scores[what] = [mean_of("loss", torch.from_numpy(each))]
        means = [_means(learned, sites[k][0], x[fold]) for k, fold in enumerate(folds)]
        intervals = _intervals(e, torch.cat(means), y[np.concatenate(folds)])
    found = Evidence.of_table(scores, table.x, rows.schema, intervals)
    return remembered(e, learned.kind._replace(schema=rows.schema), memory), found, []


def _targets(path: Path, rows: NewRows, learned: LearnedTables) -> Array | None:
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


def _means(learned: LearnedTables, memory: Params, x: Tensor) -> Tensor:
    found = remembered(learned.experiment, learned.kind, memory)
    with torch.no_grad():
        means: Tensor = layered(found.state, learned.experiment.of(Molar).family)(x)
    return means


def _row_losses(e: Experiment, site: tuple[Params, dict[str, float]], rows: Rows) -> Array:
    """Returns held-out rows' losses by each kind of coefficients, shape (3, n); NaN without one."""
    (memory, means), own = site, e.of(Molar)
    held_out = rows.with_ones() if own.intercept else rows
    table = torch.stack([*memory.values()]).double().numpy()  # in the columns' order
    loss, columns = FAMILIES[own.family].loss, zip(_LOSSES, ("coef", "own", "shared"), strict=True)
    with np.errstate(over="ignore", invalid="ignore"):  # a Poisson mean may overflow
        each = [
            loss(held_out.x @ table[:, Molar.remembered.index(kind)], rows.y)
            if np.isfinite(means[name])
            else np.full(len(rows.y), np.nan)
            for name, kind in columns
        ]
    return np.stack(each)


def _at_a_site(
    learned: LearnedTables, table: Rows, rows: Ints, held_out: Ints | None
) -> tuple[Params, dict[str, float]]:
    """Has a site compute its coefficients; returns its memory, and losses on held-out rows."""
    e = learned.experiment
    train = Rows(table.x[rows], table.y[rows])
    test = None if held_out is None else Rows(table.x[held_out], table.y[held_out])
    data, store = TableData([train], [test], learned.kind.schema or Schema(())), RamStore()
    site = TableSites(e, data, store)
    record = learned.checkpoint.model
    shared, half = read_shared(record, len(site.names))
    told = read_told(record, len(site.names)) if e.of(Molar).sharing == "adaptive" else None
    try:
        losses = site.personalize(0, shared, half, server_round=1, told=told)
    except ValueError as error:
        raise DataError(f"the rows cannot be used: {one_line(str(error))}") from error
    return store.load(0, before=2) or {}, losses


def of_coefficients(learned: LearnedTables, found: Coefficients, client: int | None) -> Evidence:
    """Evaluates a client's coefficients, or the common ones, by the run and the rows."""
    e, clients = learned.experiment, learned.results.get("clients", {})
    scores: dict[str, list[ScoreEstimate]] = {}
    ids = clients.get("ids", range(e.num_clients))
    if clients and client in ids:
        at = ids.index(client)
        figures = {key: each[at] for key, each in clients.items() if key not in ("ids", "names")}
        scores["the run's"] = [ScoreEstimate(name, value) for name, value in figures.items()]
    if e.own.plug_in not in (Molar.plug_in, Cox.plug_in):
        return Evidence(scores)
    try:
        data = learned.tables
    except DataError:
        return Evidence(scores)
    curve = e.own.plug_in == Cox.plug_in
    test = None if client is None or curve else data.test[client]
    more, intervals = of_test(e, found, test)
    train = [own.x for own in (data.train if client is None else [data.train[client]]) if own]
    x = np.concatenate(train)
    return Evidence.of_table(scores | more, x, found.schema, intervals)


def of_test(
    e: Experiment, found: Coefficients, test: Rows | None
) -> tuple[dict[str, list[ScoreEstimate]], list[Interval]]:
    """Returns scores and intervals of coefficients on test rows; neither if there are none."""
    if test is None:
        return {}, []
    family = FAMILIES[e.of(Molar).family]
    with torch.no_grad():
        eta = layered(found.state)(torch.from_numpy(test.x))[:, 0].numpy()
    rows, means = family.loss(eta, test.y), family.mean(eta)
    scores = {f"its {len(rows)} test rows": [mean_of("loss", torch.from_numpy(rows))]}
    return scores, _intervals(e, torch.from_numpy(means), torch.from_numpy(test.y))


def _intervals(e: Experiment, means: Tensor, y: Tensor) -> list[Interval]:
    return intervals_on(means, y, values=e.of(Molar).family != "logistic")


for _family in (Molar.plug_in, MolarBandit.plug_in, MetaBan.plug_in):
    MODELS.register(_family)(Models(LearnedTables, package_of, adapted_package))
