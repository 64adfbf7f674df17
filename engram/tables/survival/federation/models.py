"""Cox's models to take home: hazard ratios, and survival curves of new patients."""

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
import torch

from engram.client.memory import RamStore
from engram.core.arrays import Array
from engram.core.types import Params
from engram.data.new_rows import read_new_rows
from engram.data.schema.columns import Schema
from engram.data.schema.declared import declare
from engram.data.schema.typed import typed
from engram.data.tables.survival_columns import survival_columns
from engram.data.tables.tables import TableData
from engram.home.card import UNLABELED, Evidence
from engram.home.exported import Package
from engram.home.learned import MODELS, Models
from engram.settings.errors import DataError, Refused, one_line
from engram.tables.federation.coefficients import Coefficients, linear
from engram.tables.federation.models import (
    LearnedTables,
    memory_of,
    of_coefficients,
    package_table,
    schema_of,
)
from engram.tables.federation.molar_messages import read_shared
from engram.tables.site import Rows
from engram.tables.survival.baseline import Baseline
from engram.tables.survival.federation.cox import Cox
from engram.tables.survival.federation.host import CoxSites

_LEAST: Final = 10  # times of a curve, up to which they lie at twice the distance
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_RATIO: Final = "the log hazard ratio to a patient with all inputs 0"


def curve_times(end: float) -> Array:
    """Returns 10 to 25 round times in (0, end], shape (K,)."""
    if not end > 0:
        return np.zeros(0)
    tens = 10 ** np.floor(np.log10(end / _LEAST))
    step = max(tens * each for each in _STEPS if tens * each * _LEAST <= end)
    times = step * np.arange(1, int(end / step + 1e-9) + 1)
    return np.asarray(np.minimum(times, end))  # products are rounded


def _of_memory(memory: Params, schema: Schema) -> Coefficients:
    """Returns layers from inputs to survival at round times."""
    coef, low, high, *more = memory["coefficients"].numpy().T
    time, hazard = memory["baseline"].numpy()
    reference, end = memory["at"].tolist()
    names = "own", "own low", "own high", "personal"
    found = _ratios(schema, coef, low, high, dict(zip(names, more, strict=True)))
    times = curve_times(end)
    at_times = Baseline(time, hazard, reference, end).cumulative_hazard(reference)(times)
    bias, curve = -memory["at"][:1], torch.from_numpy(at_times)
    state = {"layer0.weight": memory["coefficients"][:, -1][None].contiguous(), "layer0.bias": bias}
    outputs = [f"survival at {each:g}" for each in times]
    return found._replace(state=state | {"curve.hazard": curve}, outputs=outputs)


def _ratios(
    schema: Schema, coef: Array, low: Array, high: Array, own: dict[str, Array]
) -> Coefficients:
    ratios = zip(("hazard ratio", "ratio low", "ratio high"), (coef, low, high), strict=True)
    limits = {"low": low, "high": high} | {name: np.exp(part) for name, part in ratios} | own
    each = {name: torch.from_numpy(np.array(part)) for name, part in limits.items()}
    found = linear(schema, list(schema.inputs), torch.from_numpy(np.array(coef)), each)
    return found._replace(outputs=["log hazard ratio"])


def package_of(learned: LearnedTables, client: int | None) -> Package:
    """Returns a client's survival curves, or the common hazard ratios, with their card.

    Raises:
        Refused: If there are none, or its memories are elsewhere.
    """
    schema = schema_of(learned, learned.kind.schema or Schema(()), client)
    if client is not None:
        found = _of_memory(memory_of(learned, client), schema)
    elif shared := (learned.record.results or {}).get("shared"):
        coef, low, high = (np.array(shared[key]) for key in ("coef", "low", "high"))
        found = _ratios(schema, coef, low, high, {})
    else:
        raise Refused("the run has no common model yet: it is not finished")
    return _package(learned, client, found, of_coefficients(learned, found, client))


def adapted_package(learned: LearnedTables, path: Path, name: str) -> Package:
    """Returns the curves of a client that never took part, with their card.

    The coefficients are the common ones, and the baseline hazard is that of its rows.
    """
    e = learned.experiment
    rows = read_new_rows(path, learned.kind, e.to_config(), of_one_client=True)
    declared, frame = declare(e, alone=True), pd.DataFrame(dict(rows.others))
    if not rows.size or declared.target not in frame:
        return package_of(learned, None)._replace(notes=[UNLABELED])
    time = typed(declared.schema.column(declared.target), frame[declared.target]).to_numpy()
    schema = rows.schema or Schema(())
    beside = survival_columns(path, frame, declared.schema)
    table = Rows(np.asarray(rows.x, dtype=np.float64), time, *beside)
    store = RamStore()
    site = CoxSites(e, TableData([table], [None], schema), store)
    try:
        site.personalize(0, read_shared(learned.checkpoint.model, len(schema.inputs)), 1)
    except ValueError as error:
        raise DataError(f"the rows cannot be used: {one_line(str(error))}") from error
    found = _of_memory(store.load(0, before=2) or {}, schema)
    return _package(learned, name, found, Evidence.of_table({}, table.x, schema, []))


def _package(
    learned: LearnedTables, client: int | str | None, found: Coefficients, evidence: Evidence
) -> Package:
    note = "Its outputs are the probabilities of no event until each time, in the data's unit."
    if "curve.hazard" not in found.state:
        note = f"Its output is {_RATIO}: a client's own model has survival curves."
    return package_table(learned, client, found, evidence, [note])


MODELS.register(Cox.plug_in)(Models(LearnedTables, package_of, adapted_package))
