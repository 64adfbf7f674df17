"""References that any network has to beat: a constant and linear models, own and pooled.

They are computed where a comparison has the data, and kept in its folder.
"""

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engram.arguments import REFERENCES
from engram.cli.progress import progress_lines
from engram.compare import linear
from engram.core.streams import scored, unseen
from engram.data.federated import FederatedData, Split
from engram.data.file_models import Figure, Stored, read_stored
from engram.data.lazy import RowNumbers
from engram.data.load_federation import federated_data
from engram.runs.run import Run
from engram.scoring.query_rows import query_rows
from engram.scoring.survival_losses import PAIRED
from engram.scoring.tasks import task_of
from engram.settings.experiment import Experiment
from engram.settings.files import replace_file
from engram.settings.network import NetworkMethod
from engram.simulations.job_pool import Tell, one_thread

CONSTANT, LINEAR, POOLED = NAMES = tuple(REFERENCES.values())
_FORMER: Final = {  # names in files of older versions
    "constant, own": CONSTANT,
    "linear model, own": LINEAR,
    "linear model, pooled": POOLED,
}
_CALLED: Final = {
    "survival": {CONSTANT: "Kaplan-Meier", LINEAR: "Cox, with ridge", POOLED: "Cox, with ridge"},
}
_FILE: Final = "references.json"
_MOST: Final = 2 * 10**6  # numbers that the pooled model is fitted on
_SECONDS: Final = 60.0  # of processor time, for the linear models of a seed, own and pooled each

_Rows = Mapping[int, RowNumbers]
_Outputs = dict[int, torch.Tensor]


class References(NamedTuple):
    """Scores without a network, and words on them.

    Attributes:
        scores: By reference, each metric of each client, None where it has no value.
        notes: By reference, why it is left out, or on which rows or clients it is.
    """

    scores: dict[str, dict[str, list[float | None]]]
    notes: dict[str, str]


@one_thread()  # small arrays gain nothing by more
def references(
    experiment: Experiment,
    which: Collection[str] = NAMES,
    tell: Tell = lambda done, words: None,
    known: dict[str, References] | None = None,
) -> References:
    """Scores a constant and linear models on the test rows that methods have.

    Own models learn from the client's training rows alone, the pooled one from those of all clients
    that train, or a random part of them. For classes the constant is their shares; for values,
    their mean; for times, Kaplan and Meier's curve. Linear models (``engram.compare.linear``) need
    inputs that are one array of numbers, and stop after ``_SECONDS``.

    Args:
        experiment: The settings.
        which: The references, of ``NAMES``.
        tell: Called with the number of linear models that are fitted.
        known: References by a digest of their rows; these are taken, and new ones are added.
    """
    e, known = experiment.model_copy(update={"device": "cpu"}), {} if known is None else known
    users = e.loss and e.loss not in PAIRED
    if users or e.task not in linear.FITS:
        why = "a loss of your own" if users else f"the task {e.task}"
        return References({}, dict.fromkeys(which, f"none for {why}"))
    data = federated_data(e)
    tested = {client: query_rows(e, data.test, client) for client in _clients(e, data)}
    digest = _digest(e, data, tested)
    if digest not in known:
        outputs, notes = _fitted(e, data, tested, which, tell)
        scores = {name: _scored(e, data, tested, found) for name, found in outputs.items()}
        known[digest] = References(scores, notes)
    return known[digest]


def _clients(e: Experiment, data: FederatedData) -> list[int]:
    able = [c for c in range(e.num_clients) if c not in {*data.left_out, *data.unscored}]
    return scored(e, able, unseen(e, data.names))


def _training(e: Experiment, data: FederatedData) -> list[int]:
    away = set(data.left_out) | unseen(e, data.names)
    return [c for c in range(e.num_clients) if c not in away]


def _digest(e: Experiment, data: FederatedData, tested: _Rows) -> str:
    """Digest of rows, clients and parts, in any order."""
    from joblib import hash as digest  # noqa: PLC0415 - slow to import

    splits = [data.train, data.test, *([data.validation] if data.validation else [])]
    held = {id(t): t.numpy() for s in splits for t in (s.x, s.y) if isinstance(t, torch.Tensor)}
    owners = [*(split.rows for split in splits), [*tested.values()]]
    rows = [np.concatenate([*map(np.sort, each), []]) for each in owners]
    counts = [np.array([*map(len, each)]) for each in owners]
    clients = [np.array(each) for each in ([*tested], _training(e, data))]
    return str(digest([[*held.values()], rows, counts, clients]))


def _scored(
    e: Experiment, data: FederatedData, tested: _Rows, outputs: _Outputs
) -> dict[str, list[float | None]]:
    y = {client: data.test.y[torch.from_numpy(tested[client])] for client in outputs}
    found = dict[str, list[float | None]]()
    for metric in e.of(NetworkMethod).metrics(e):
        scores = {c: linear.scored(metric, outputs[c], y[c]) for c in outputs}
        found[metric.name] = [scores.get(client) for client in range(e.num_clients)]
    return found


def _fitted(
    e: Experiment, data: FederatedData, tested: _Rows, which: Collection[str], tell: Tell
) -> tuple[dict[str, _Outputs], dict[str, str]]:
    outputs, notes = dict[str, _Outputs](), dict(_CALLED.get(e.task, {}))
    if CONSTANT in which:
        own = {c: linear.constant(e.task, data, data.train.rows[c]) for c in tested}
        outputs[CONSTANT] = {c: linear.predicted(own[c], data.test, tested[c]) for c in tested}
    if not linear.in_memory(data.train):
        why = "none for inputs that are not one array of numbers in memory"
        return outputs, {name: why for name in (LINEAR, POOLED) if name in which}
    if LINEAR in which:
        outputs[LINEAR] = _own(e, data, tested, tell)
        if (count := len(outputs[LINEAR])) < len(tested):
            notes[LINEAR] = f"of {count} of {len(tested)} clients: its {_SECONDS:g} s were over"
    if POOLED in which:
        outputs[POOLED], words = _pooled(e, data, tested)
        notes |= {POOLED: words} if words else {}
    return outputs, notes


def _own(e: Experiment, data: FederatedData, tested: _Rows, tell: Tell) -> _Outputs:
    outputs, ends = _Outputs(), time.process_time() + _SECONDS
    for client, rows in tested.items():
        if time.process_time() >= ends:
            break
        held_out = data.validation.rows[client] if data.validation else None
        model = linear.fit(task_of(e.task, e.loss), data, data.train.rows[client], held_out, ends)
        outputs[client] = linear.predicted(model, data.test, rows)
        tell(len(outputs), "")
    return outputs


def _pooled(e: Experiment, data: FederatedData, tested: _Rows) -> tuple[_Outputs, str]:
    clients = _training(e, data)
    rng = np.random.default_rng([e.seed, len(clients)])
    most = max(1, _MOST // data.train.numbers)

    def some(split: Split) -> RowNumbers:
        return rng.permutation(np.concatenate([split.rows[c] for c in clients]))[:most]

    rows, total = some(data.train), sum(len(data.train.rows[c]) for c in clients)
    if linear.alike(data.train, rows):
        return {}, "none, since all targets are alike"
    held_out = None if data.validation is None else some(data.validation)
    model = linear.fit(
        task_of(e.task, e.loss), data, rows, held_out, time.process_time() + _SECONDS
    )
    outputs = {c: linear.predicted(model, data.test, own) for c, own in tested.items()}
    part = f"fitted on {len(rows):,} random rows of {total:,}"
    return outputs, part if len(rows) < total else ""


class _References(Stored):
    """Scores of each client, by seed, reference and metric; and notes by reference."""

    notes: dict[str, str] | None = None
    __pydantic_extra__: dict[str, dict[str, dict[str, list[Figure | None]]]]


def write_references(
    folder: Path,
    experiments: Iterable[Experiment],
    which: Collection[str] = tuple(REFERENCES),
    again: str = "",
    *,
    shown: bool = False,
) -> None:
    """Keeps the references of a comparison's runs in its folder, by seed.

    Seeds with the same rows have the same references, which are fitted once.

    Raises:
        SystemExit: Ctrl-C was pressed while progress was shown; status 130.
    """
    names, known = [REFERENCES[name] for name in which], dict[str, References]()
    found = dict[str, References]()
    with progress_lines("models", lambda: f"go on with: {again}", shown=shown) as begin:
        for seed, e in {e.seed: e for e in experiments}.items() if names else ():
            tell = begin(f"references seed {seed}", e.num_clients + 1)
            found[str(seed)] = references(e, names, tell, known)
            tell(e.num_clients + 1, "")
    notes = {name: words for each in found.values() for name, words in each.notes.items()}
    held: dict[str, Any] = {seed: each.scores for seed, each in found.items() if each.scores}
    replace_file(folder / _FILE, json.dumps(held | ({"notes": notes} if notes else {})).encode())


def _read(folder: Path) -> dict[str, Any]:
    path = folder / _FILE
    held = read_stored(path, _References) if path.is_file() else {}
    return {
        key: {_FORMER.get(name, name): found for name, found in (each or {}).items()}
        for key, each in held.items()
    }


def read_notes(folder: Path) -> dict[str, str]:
    """Reads notes on a comparison's references, by name."""
    return dict(_read(folder).get("notes", {}))


def read_references(
    folder: Path, records: Sequence[Run], metric: str
) -> dict[str, list[npt.NDArray[np.float64]]]:
    """Reads each client's scores by each reference, for the seeds of some runs.

    They are NaN where there are none, and for clients that never train, whom methods are not
    compared on.
    """
    held = _read(folder)
    seeds = {str(r.settings["seed"]): (r.results or {}).get("unseen", ()) for r in records}
    found: dict[str, list[npt.NDArray[np.float64]]] = {}
    for name in NAMES:
        if all(metric in held.get(seed, {}).get(name, {}) for seed in seeds):
            found[name] = [np.array(held[seed][name][metric], dtype=float) for seed in seeds]
            for scores, never in zip(found[name], seeds.values(), strict=True):
                scores[np.array(never, dtype=int)] = np.nan
    return found
