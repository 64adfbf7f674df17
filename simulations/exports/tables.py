"""Models of methods that train no network of the user's: coefficients, and users' networks."""

import csv
import io
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from engram.molar.site import INTERCEPT
from engram.types import Params
from federation.errors import Refused
from federation.methods.meta_ban import MetaBan
from federation.methods.molar import Molar
from federation.methods.molar_bandit import MolarBandit
from simulations.learned import Learned

__all__ = ["Coefficients", "coefficients_of", "linear"]


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
        writer.writerow([name, *(float(values[k]) for values in each.values())])
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
    names = [*learned.kind.columns, *([INTERCEPT] if INTERCEPT in memory else [])]
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


_FAMILIES: Final[dict[str, Callable[[Learned, int | None], Coefficients]]] = {
    Molar.plug_in: _molar,
    MolarBandit.plug_in: _molar_bandit,
    MetaBan.plug_in: _meta_ban,
}
