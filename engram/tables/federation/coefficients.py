"""Models that clients remember, of the methods that do not train a network of the user's."""

from dataclasses import replace
from math import inf, nan
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from engram.bandits.federation.meta_ban import MetaBan
from engram.core.types import Params
from engram.data.schema.columns import Kind, Schema
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.tables.federation.molar import Molar, MolarBandit
from engram.tables.site import INTERCEPT


class Coefficients(NamedTuple):
    """A model of a table's columns.

    Attributes:
        state: Its arrays, as ``engram.networks.export_modules.layered`` takes them.
        schema: The schema of its inputs.
        outputs: The names of its outputs.
        table: The coefficients with their limits, as a CSV file; empty for networks.
    """

    state: Params
    schema: Schema
    outputs: list[str]
    table: str = ""


def remembered(experiment: Experiment, kind: Kind, memory: Params) -> Coefficients:
    """Returns the model that a client remembers; its memory is not empty.

    Raises:
        Refused: If the method has no model.
    """
    schema, family = kind.schema or Schema(()), experiment.own.plug_in
    names = list(schema.inputs)
    if family == MolarBandit.plug_in:
        return linear(schema, names, memory["coefs"], {})
    if family == MetaBan.plug_in:
        layers = sorted(int(n.removeprefix("theta.")) for n in memory if n.startswith("theta."))
        state = {f"layer{k}.weight": memory[f"theta.{k}"][0] for k in layers}
        return Coefficients(state, schema, ["0"])
    if family != Molar.plug_in:
        raise Refused(f"{experiment.method} has no model to export")
    names += [INTERCEPT] * (INTERCEPT in memory)
    table = torch.stack([memory[name] for name in names], dim=1)
    found = linear(schema, names, table[0], dict(zip(Molar.remembered[1:], table[1:], strict=True)))
    return found._replace(outputs=list(kind.classes[1:]) or found.outputs)


def linear(
    schema: Schema, names: list[str], coef: Tensor, limits: dict[str, Tensor]
) -> Coefficients:
    """Returns a linear model.

    Args:
        schema: The schema of its inputs; a column that is called as the intercept is no input.
        names: The coefficients' names, the intercept's last.
        coef: Shape (d,) or, for several outputs, (P, d).
        limits: Further columns of the table, (d,), by heading.
    """
    rows = coef.double().reshape(-1, len(names))
    state = {"layer0.weight": rows}
    if names[-1] == INTERCEPT:
        inputs = tuple(column for column in schema.columns if column.name != INTERCEPT)
        schema = replace(schema, columns=inputs)
        state = {"layer0.weight": rows[:, :-1].contiguous(), "layer0.bias": rows[:, -1].clone()}
    outputs = [str(p) for p in range(len(rows))]
    headings = [f"coef {name}" for name in outputs] if len(rows) > 1 else ["coef"]
    each = dict(zip(headings, rows, strict=True)) | limits
    columns = {heading: values.numpy() for heading, values in each.items()}
    table = pd.DataFrame(columns, index=pd.Index(names, name="name")).replace([-inf, inf], nan)
    return Coefficients(state, schema, outputs, table.to_csv(lineterminator="\n"))
