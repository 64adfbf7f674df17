"""Models of methods that train no network of the user's, of what their clients remember."""

import csv
import io
import math
from typing import NamedTuple

import torch
from torch import Tensor

from engram.molar.site import INTERCEPT
from engram.types import Params
from federation.errors import Refused
from federation.experiment import Experiment
from federation.methods.meta_ban import MetaBan
from federation.methods.molar import Molar
from federation.methods.molar_bandit import MolarBandit
from federation.roster import Kind

__all__ = ["Coefficients", "linear", "remembered"]


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


def remembered(experiment: Experiment, kind: Kind, memory: Params) -> Coefficients:
    """Returns the model that a client remembers.

    Args:
        experiment: The settings.
        kind: What rows are like: their columns.
        memory: What the client remembers, not nothing.

    Raises:
        Refused: If the method has no model.
    """
    names, family = list(kind.columns), experiment.own.plug_in
    if family == MolarBandit.plug_in:
        return linear(names, memory["coefs"], {})
    if family == MetaBan.plug_in:
        layers = sorted(int(n.removeprefix("theta.")) for n in memory if n.startswith("theta."))
        state = {f"layer{k}.weight": memory[f"theta.{k}"][0] for k in layers}
        return Coefficients(state, names, ["0"])
    if family != Molar.plug_in:
        raise Refused(f"{experiment.method} has no model to export")
    names += [INTERCEPT] * (INTERCEPT in memory)
    table = torch.stack([memory[name] for name in names], dim=1)
    headings = ("low", "high", "own", "shared")
    return linear(names, table[0], dict(zip(headings, table[1:], strict=True)))


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
