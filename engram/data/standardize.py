"""Standardized rows: by all clients' training rows together, or by each client's own."""

from collections.abc import Iterable, Iterator, Sequence
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from engram.core.arrays import Bools
from engram.core.standardization import Moments, Standard, Units, merged
from engram.core.streams import unseen
from engram.data.federated import FederatedData, Split, seen_as
from engram.data.lazy import RowNumbers, Texts
from engram.data.schema.columns import Told
from engram.scoring.tasks import TASKS
from engram.settings.errors import Refused

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment

_log = getLogger("flwr.engram")

_BLOCK: Final = 2**16  # rows whose moments are computed at once
_DIFFER: Final = 100  # times one column's deviation that another's may be, unsaid


def told(experiment: "Experiment", data: FederatedData, clients: Iterable[int]) -> Told:
    """Moments of training rows, but for clients that never train.

    Raises:
        Refused: Inputs are to be standardized, but have no columns.
    """
    e, never = experiment, unseen(experiment, data.names) | experiment.withdrawn
    rows = [data.train.rows[client] for client in clients if client not in never]
    numeric = _numeric(e, data) if standardized_by(e, data) == "federation" else None
    inputs = None if numeric is None else _inputs(data.train, rows, numeric)
    values = TASKS[e.task].targets == "values" and not e.loss and not e.is_private
    return Told(inputs, _targets(data.train, rows) if values and e.standardize != "none" else None)


def fitted(experiment: "Experiment", data: FederatedData) -> FederatedData:
    """Returns data of all clients with their units, as the server of a run fits them."""
    inputs, targets, _ = told(experiment, data, range(experiment.num_clients))
    units = Units(inputs and inputs.standard(), targets and targets.standard())
    return data._replace(units=units)


def in_units(data: FederatedData, units: Units) -> FederatedData:
    """Returns data in the units of a run: of texts, the tokens that its tokenizer makes."""
    found, text, device = data._replace(units=units), units.text, data.train.y.device
    if text is None or not isinstance(data.train.x, Texts):
        return found
    return found.with_inputs(*(torch.from_numpy(s.x.tokens(text)).to(device) for s in data[:2]))


def standardized(experiment: "Experiment", data: FederatedData) -> FederatedData:
    """Returns data with inputs as the network takes them: standardized, where it takes them so.

    Raises:
        Refused: As for ``told``.
    """
    if standardized_by(experiment, data) == "client":
        return _by_client(data, _numeric(experiment, data))
    inputs = data.units.inputs
    return data if inputs is None else data.with_inputs(*(_all(s, inputs) for s in data[:2]))


def own_units(experiment: "Experiment", data: FederatedData, client: int) -> Units:
    """Returns the units of a client's rows: those of the run, or with its own of inputs."""
    if standardized_by(experiment, data) != "client":
        return data.units
    own = _inputs(data.train, [data.train.rows[client]], _numeric(experiment, data))
    return data.units._replace(inputs=own and own.standard())


def warn_of_scales(experiment: "Experiment", data: FederatedData) -> None:
    """Logs a warning where columns of arrays, which are taken as they are, differ in scale.

    Rows that are read as they are drawn are not read for that.
    """
    like, lazy = data.train.like, data.train.is_lazy
    if experiment.standardize != "auto" or _is_table(data) or lazy or not _has_columns(like):
        return
    found = _inputs(data.train, data.train.rows, None)
    if found is None:
        return
    deviations = np.sqrt(np.array(found.squares) / found.rows)
    least, most = np.where(deviations > 0, deviations, np.inf).argmin(), deviations.argmax()
    if deviations[most] > _DIFFER * deviations[least] > 0:
        columns = least, deviations[least], most, deviations[most]
        _log.warning(
            "columns of x differ in scale: column %d has deviation %.3g and column %d %.3g; "
            "standardize=federation trains on standardized ones",
            *columns,
        )


# --- Which columns -------------------------------------------------------------------------------


def standardized_by(e: "Experiment", data: FederatedData) -> str:
    """The rows that standardize inputs: ``federation``, ``client`` or ``none``."""
    return standardizing(e, table=_is_table(data))


def standardizing(e: "Experiment", *, table: bool) -> str:
    """Returns the same for the columns of a table, or of arrays."""
    if e.standardize != "auto":
        return e.standardize
    if not table or e.hides_rows:  # of which a row must not move others
        return "none"
    return "client" if e.is_private else "federation"


def _is_table(data: FederatedData) -> bool:
    named = data.schema is not None and not data.schema.of_arrays
    return named and _has_columns(data.train.like)


def _has_columns(like: Any) -> bool:
    return isinstance(like, Tensor) and like.ndim == 2 and like.is_floating_point()


def _numeric(e: "Experiment", data: FederatedData) -> Bools:
    like = data.train.like
    if not _has_columns(like):
        raise Refused(
            f"standardize must be auto or none for these inputs, got {e.standardize}: columns are "
            f"those of tables, and of float arrays of shape (rows, features); they are "
            f"{data.kind.inputs}"
        )
    return np.array(data.schema.numeric if data.schema else [True] * like.shape[1])


# --- Moments -------------------------------------------------------------------------------------


def _blocks(rows: Sequence[RowNumbers]) -> Iterator[Tensor]:
    everything = np.concatenate([*rows, np.empty(0, dtype=np.int64)])
    for start in range(0, len(everything), _BLOCK):
        yield torch.from_numpy(everything[start : start + _BLOCK])


def _inputs(split: Split, rows: Sequence[RowNumbers], numeric: Bools | None) -> Moments | None:
    device = split.y.device
    taken = (split.take(some.to(device), exact=True)[0] for some in _blocks(rows))
    return merged(Moments.of(x.cpu().double().numpy(), numeric) for x in taken)


def _targets(split: Split, rows: Sequence[RowNumbers]) -> Moments | None:
    """Returns moments of each column of targets; of those with more axes, of all numbers."""
    shape = split.y.shape[1] if split.y.ndim == 2 else 1
    taken = (split.y.index_select(0, some.to(split.y.device)) for some in _blocks(rows))
    return merged(Moments.of(y.cpu().double().reshape(-1, shape).numpy()) for y in taken)


# --- Rows ----------------------------------------------------------------------------------------


def _all(split: Split, standard: Standard) -> Any:
    if not split.is_lazy:
        return standard.standardized(split.x).float()
    return split.x.then(lambda rows: standard.standardized(torch.from_numpy(rows)).float().numpy())


def _by_client(data: FederatedData, numeric: Bools) -> FederatedData:
    train, test = (seen_as(s.x).to(s.y.device) if s.is_lazy else s.x.clone() for s in data[:2])
    held_out = data.validation.rows if data.validation else data.train.rows
    for client, rows in enumerate(data.train.rows):
        found = _inputs(data.train, [rows], numeric)
        if found is None:  # it is hosted elsewhere
            continue
        standard, tested = found.standard(), data.test.rows[client]
        test[tested] = standard.standardized(test[tested])
        learned = np.union1d(rows, held_out[client])
        train[learned] = standard.standardized(train[learned])
    return data.with_inputs(train.float(), test.float())
