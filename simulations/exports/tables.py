"""Models of methods that train no network of the user's: coefficients, and users' networks."""

import csv
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from client.hosts.molar import TableSites
from client.memory import RamStore
from engram.arrays import Ints
from engram.molar.site import INTERCEPT, Rows
from engram.types import Params
from federation.data.tables import Table, TableData, read_frame, read_table
from federation.errors import DataError, Refused, few_names, one_line
from federation.estimates import read_shared, read_told
from federation.methods.meta_ban import MetaBan
from federation.methods.molar import Molar
from federation.methods.molar_bandit import MolarBandit
from federation.streams import Stream, generator
from federation.wire import to_record
from simulations.exports.card import Score
from simulations.learned import Learned

__all__ = ["FOLDS", "UNLABELED", "Coefficients", "coefficients_of", "linear", "transferred"]

FOLDS: Final = 5
"""Of cross-validation on a newcomer's rows."""

UNLABELED: Final = (
    "The rows have no targets: it is the common model, and nothing has been learned from them."
)
"""The note of a model for a newcomer without targets."""


class Coefficients(NamedTuple):
    """A model of columns.

    Attributes:
        state: As ``engram.models.plain.layered`` takes it.
        columns: What its inputs are called.
        outputs: What its outputs are called.
        table: The coefficients with what is known beside them, as a CSV file; empty for networks.
    """

    state: Params
    columns: list[str]
    outputs: list[str]
    table: str = ""


def coefficients_of(learned: Learned, client: int | None) -> Coefficients:
    """Returns the model of a client, or the common one.

    Raises:
        Refused: If there is none.
    """
    make = _FAMILIES.get(learned.experiment.own.plug_in)
    if make is None:
        raise Refused(f"{learned.experiment.method} has no model to export")
    return make(learned, client)


def linear(names: list[str], coef: Tensor, limits: dict[str, Tensor]) -> Coefficients:
    """Returns a linear model.

    Args:
        names: What the coefficients are called; that of the intercept is the last one.
        coef: Shape (d,) or, of several outputs, (P, d).
        limits: What is known beside it, (d,), by headings.
    """
    rows, columns = coef.double().reshape(-1, len(names)), list(names)
    state = {"layer0.weight": rows}
    if columns[-1] == INTERCEPT:
        columns.pop()
        state = {"layer0.weight": rows[:, :-1].contiguous(), "layer0.bias": rows[:, -1].clone()}
    outputs = [str(p) for p in range(len(rows))]
    headings = [f"coef {name}" for name in outputs] if len(rows) > 1 else ["coef"]
    each = dict(zip(headings, rows, strict=True)) | limits
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["name", *each])
    for k, name in enumerate(names):
        known = (float(values[k]) for values in each.values())
        writer.writerow([name, *("" if math.isnan(value) else value for value in known)])
    return Coefficients(state, columns, outputs, file.getvalue())


def _memory(learned: Learned, client: int) -> Params:
    found = learned.memory(client)
    if not found:
        raise Refused(f"client {learned.called(client)} keeps no model: it had no part in the run")
    return found


def _shared(learned: Learned) -> dict[str, Any]:
    found: dict[str, Any] = (learned.record.results or {})["shared"]
    return found


def _molar(learned: Learned, client: int | None) -> Coefficients:
    if client is None:
        shared = _shared(learned)
        limits = {key: torch.tensor([*map(_number, shared[key])]) for key in ("low", "high")}
        return linear(shared["names"], torch.tensor(shared["coef"], dtype=torch.float64), limits)
    memory = _memory(learned, client)
    return _personal(memory, [*learned.kind.columns, *([INTERCEPT] * (INTERCEPT in memory))])


def _personal(memory: Params, names: list[str]) -> Coefficients:
    table = torch.stack([memory[name] for name in names], dim=1)
    headings = ("low", "high", "own", "shared")
    return linear(names, table[0], dict(zip(headings, table[1:], strict=True)))


def _number(value: float | None) -> float:
    return torch.nan if value is None else value


def _molar_bandit(learned: Learned, client: int | None) -> Coefficients:
    names = list(learned.kind.columns)
    if client is not None:
        return linear(names, _memory(learned, client)["coefs"], {})
    coef = _shared(learned)["coef"]
    if None in coef:
        raise Refused("the sites share no estimate of some parameters: export a client's instead")
    return linear(names, torch.tensor(coef, dtype=torch.float64), {})


def _meta_ban(learned: Learned, client: int | None) -> Coefficients:
    if client is None:
        raise Refused(
            "there is no common model: users' networks are trained for groups that are inferred in "
            "each turn; export a client's instead"
        )
    memory = _memory(learned, client)
    layers = sorted(int(n.removeprefix("theta.")) for n in memory if n.startswith("theta."))
    state = {f"layer{k}.weight": memory[f"theta.{k}"][0] for k in layers}
    return Coefficients(state, list(learned.kind.columns), ["0"])


def transferred(
    learned: Learned, path: Path
) -> tuple[Coefficients, dict[str, list[Score]], list[str]]:
    """Returns a newcomer's model, its scores by cross-validation, and notes for its card.

    Raises:
        Refused: If the method is none of regressions, or the rows cannot be used.
    """
    if learned.experiment.own.plug_in != Molar.plug_in:
        raise Refused(
            f"{learned.experiment.method} learns by acting, and adapts to no rows: a newcomer "
            "joins its federation instead"
        )
    e, columns = learned.experiment, list(learned.kind.columns)
    if path.suffix == ".csv" and e.target_column not in read_frame(path):
        return _molar(learned, None), {}, [UNLABELED]
    table = read_table(f"{path.suffix[1:]}:{path}", e.target_column, e.task_column, one_task=True)
    if table.columns != columns:
        raise DataError(
            f"{path} must have the columns {few_names(columns)}, in this order, got "
            f"{few_names(table.columns)}"
        )
    every = np.arange(len(table.y))
    memory, _ = _at_a_site(learned, table, every, None)
    order = generator(e.seed, Stream.FOLDS).permutation(len(table.y))
    folds = np.array_split(order, min(FOLDS, len(order))) if len(order) > 1 else []
    found = [
        _at_a_site(learned, table, np.sort(np.setdiff1d(every, fold)), fold)[1] for fold in folds
    ]
    sizes = [len(fold) for fold in folds]
    called = {
        "adapted, cross-validated": "loss-personal",
        "these rows alone, cross-validated": "loss-own",
        "the common model": "loss-shared",
    }
    scores = {
        what: [Score("loss", float(np.average([own[name] for own in found], weights=sizes)))]
        for what, name in called.items()
        if found
    }
    return _personal(memory, [*columns, *([INTERCEPT] * (INTERCEPT in memory))]), scores, []


def _at_a_site(
    learned: Learned, table: Table, rows: Ints, held_out: Ints | None
) -> tuple[Params, dict[str, float]]:
    """Has a site compute its coefficients; returns its memory, and losses on held-out rows."""
    e = learned.experiment
    train = [Rows(table.x[rows], table.y[rows])]
    test = None if held_out is None else Rows(table.x[held_out], table.y[held_out])
    store = RamStore()
    site = TableSites(e, TableData([*train], [test], table.columns), store)
    record = to_record(learned.checkpoint.model)
    shared, half = read_shared(record, len(site.names))
    told = read_told(record, len(site.names)) if e.of(Molar).sharing == "adaptive" else None
    try:
        losses = site.personalize(0, shared, half, server_round=1, told=told)
    except ValueError as error:
        raise DataError(f"the rows cannot be used: {one_line(str(error))}") from error
    return store.load(0, None, before=2) or {}, losses


_FAMILIES: Final[dict[str, Callable[[Learned, int | None], Coefficients]]] = {
    Molar.plug_in: _molar,
    MolarBandit.plug_in: _molar_bandit,
    MetaBan.plug_in: _meta_ban,
}
