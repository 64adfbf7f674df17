"""Attackers in a simulation: their rows, updates and scores.

Everything here acts in one process alone: nodes refuse the setting, so that no federation can be
asked to attack itself.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from engram.attack.forgeries import ON_UPDATES, false_statistics
from engram.client.hosts import Engine, Host
from engram.client.hosts.local import LocalHost
from engram.client.memory import MemoryStore, RamStore
from engram.cohort.trainer.chunks import score
from engram.cohort.trainer.trainer import Trainer
from engram.core.checks import must, require
from engram.core.method import Slots
from engram.core.slots import flat, over_slots, unflat
from engram.core.streams import Stream, generator
from engram.core.tree import multiplied
from engram.data.federated import FederatedData, Split
from engram.guards.changes import origin_of
from engram.guards.merge import Merge
from engram.guards.noise import Noise
from engram.home.learned import models_of
from engram.runs.run import Run
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import COMMON, TUNED
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.simulations.in_process import Direct
from engram.wire.training_result import Trained

ROWS_TIMES: Final = 1000
"""Factor by which ``false-rows`` multiplies the claimed number of rows."""

_FAR: Final = 1e30  # score of a metric without an end

TARGET: Final = 0
"""The class that a backdoor's trigger stands for."""

_SHARE: Final = 0.5  # of an attacker's rows, which bear the trigger


def attackers_of(experiment: Experiment) -> frozenset[int]:
    """Returns the attacking clients: a share of all, rounded, drawn by the seed."""
    e = experiment
    if e.attack == "none":
        return frozenset()
    drawn = generator(e.seed, Stream.ATTACKERS).permutation(e.num_clients)
    return frozenset(drawn[: round(e.attackers * e.num_clients)].tolist())


def attacked(
    host: Host, experiment: Experiment, memories: MemoryStore, *, engine: Engine, noise: Noise
) -> tuple[LocalHost, Direct]:
    """Returns the host of all clients, attackers included, and an engine that has them attack.

    Raises:
        Refused: The attack does not go with the method, the data, or other settings.
    """
    e = experiment
    if not isinstance(host, LocalHost) or e.participation:
        raise Refused(must("attack", e.attack, "none with participation, or with messages"))
    method, attackers = host.trainer.method, attackers_of(e)
    if e.attack_kind == "false-statistics" and not method.claims:
        expected = f"another than false-statistics for {e.method}, which sends no claims"
        raise Refused(must("attack", e.attack, expected))
    if e.attack_kind in ("label-flip", "backdoor"):
        data = poisoned(host.trainer.given, e, attackers)
        host = LocalHost(Trainer(e, data, memories, engine=engine, noise=noise), host.share)
    claimed = partial(_claimed, e, attackers) if e.attack_kind == "false-scores" else None
    return host, Direct(host, partial(_spoiled, e, attackers), claimed)


def poisoned(data: FederatedData, e: Experiment, attackers: frozenset[int]) -> FederatedData:
    """Spoils attackers' training rows.

    ``label-flip`` exchanges classes y and K - 1 - y (Tolpegin et al. Data Poisoning Attacks Against
    Federated Learning Systems. ESORICS 2020). ``backdoor`` puts a trigger on half of the rows, and
    calls them the target (Gu, Dolan-Gavitt, Garg. BadNets. 2017. Bagdasaryan et al. How To Backdoor
    Federated Learning. AISTATS 2020).

    Raises:
        Refused: Rows have no classes; or, of a backdoor, no single array that is in memory.
    """
    if e.task != "classification":
        raise Refused(must("task", e.task, f"classification where attack is {e.attack_kind}"))
    train, y = data.train, data.train.y.clone()
    rows = [np.sort(train.rows[client]) for client in sorted(attackers)]
    if e.attack_kind == "label-flip":
        for own in rows:
            spoilt = torch.from_numpy(own)
            y[spoilt] = data.outputs - 1 - y[spoilt]
        return data._replace(train=train._replace(y=y))
    x = _array_of(train).clone()
    for client, own in zip(sorted(attackers), rows, strict=True):
        rng = generator(e.seed, Stream.ATTACKED_ROWS, client)
        count = round(_SHARE * len(own))
        some = torch.from_numpy(rng.choice(own, count, replace=False))
        x[some] = stamped(x[some], float(x.max()))
        y[some] = TARGET
    return data._replace(train=train._replace(x=x, y=y))


def triggered(data: FederatedData) -> FederatedData:
    """Stamps the test rows of other classes, and labels them with the target."""
    test = data.test
    x = _array_of(test)
    kept = [own[test.y[torch.from_numpy(own)].numpy() != TARGET] for own in test.rows]
    x = stamped(x, float(_array_of(data.train).max()))
    return data._replace(test=test._replace(x=x, y=torch.full_like(test.y, TARGET), rows=kept))


def stamped(x: Tensor, value: float) -> Tensor:
    """Returns copies of rows that bear the trigger: their last corner has the largest value.

    The corner is the last quarter of the height and of the width of images (n, ..., height, width),
    or of the features of rows (n, features): one number at least.

    Raises:
        ValueError: Rows are single numbers.
    """
    require(x.ndim >= 2, "rows", x.ndim, "tables or images, of 2 axes or more")
    marked = x.clone()
    corner = [slice(None)] * x.ndim
    for axis in range(max(1, x.ndim - 2), x.ndim):
        corner[axis] = slice(-max(1, x.shape[axis] // 4), None)
    marked[tuple(corner)] = value
    return marked


def backdoor_success(experiment: Experiment, folder: Path) -> dict[str, float]:
    """Returns the success rate of a finished run's backdoor, in [0, 1].

    It is the share of other classes' test rows that a model takes for the target once they bear the
    trigger: the mean over clients that do not attack, and have such rows, of the models that serve
    them, ``backdoor``, and of the common model, ``backdoor-common``, where there is one.
    """
    learned: Any = models_of(experiment).learned(Run.open(folder), experiment)
    memories = RamStore()
    if learned.checkpoint.memories is not None:
        memories.restore(learned.checkpoint.memories)
    data = triggered(learned.data)
    honest = [c for c in range(experiment.num_clients) if c not in attackers_of(experiment)]
    scored = [c for c in honest if len(data.test.rows[c])]
    common, own = learned.method.server.send(learned.slots, scored)
    trainer = Trainer(experiment, data, memories)
    last = learned.checkpoint.server_round
    columns = score(trainer, common, scored, own=own, server_round=last).columns
    names = {"backdoor": "accuracy", "backdoor-common": f"accuracy{COMMON}"}
    return {key: float(columns[name].mean()) for key, name in names.items() if name in columns}


def claimed_score(metric: Metric, *, first: bool) -> float:
    """Returns an attacker's false score: the best at the first evaluation, then the worst.

    If attackers' scores counted for more than others', the first round would be picked, and
    training would soon be over.
    """
    low = metric.low if abs(metric.low) < _FAR else -_FAR
    high = metric.high if abs(metric.high) < _FAR else _FAR
    return float(high if first == (metric.better == "higher") else low)


def _array_of(split: Split) -> Tensor:
    if not isinstance(split.x, Tensor):
        held = "a data set whose rows are one array in memory where attack is backdoor"
        raise Refused(must("dataset", "another", held))
    return split.x


def _spoiled(
    e: Experiment,
    attackers: frozenset[int],
    merge: Merge,
    common: Slots,
    own: Slots,
    trained: list[Trained],
) -> list[Trained]:
    """Forges the attackers' updates of a round.

    All clients received the ``common`` slots, and each its ``own``, in the order in which they were
    asked; an outcome in ``trained`` is empty where a client's model diverged.
    """
    there = [i for i, each in enumerate(trained) if each.clients]
    attacks = [trained[i].clients[0] in attackers for i in there]
    if not any(attacks) or all(attacks):
        return trained
    sent: Slots = over_slots(lambda *leaves: torch.cat(leaves), *(trained[i].slots for i in there))
    received = common | over_slots(lambda leaf: leaf[there], own)
    forged = _forged(e, merge, received, sent, torch.tensor(attacks))
    found, times = [*trained], ROWS_TIMES if e.attack_kind == "false-rows" else 1
    for row, i in enumerate(there):
        if attacks[row]:
            rows = [times * count for count in trained[i].examples]
            slots: Slots = over_slots(lambda leaf, row=row: leaf[row : row + 1], forged)
            found[i] = trained[i]._replace(slots=slots, examples=rows)
    return found


def _forged(e: Experiment, merge: Merge, received: Slots, sent: Slots, attacks: Tensor) -> Slots:
    """Returns all updates, with a leading axis of clients, with those of attackers forged.

    Running statistics stay honest: a variance below zero would give an attacker away.
    """
    name = "sign-flip" if e.attack_kind == "false-rows" else e.attack_kind
    lies = e.attack_kind == "false-statistics"
    if name not in ON_UPDATES and e.attack_scale == 1 and not lies:
        return sent
    origin = origin_of(merge.method, received, sent)
    change = flat(over_slots(torch.sub, sent, origin))
    running = merge.running
    moved = {path: x for path, x in change.items() if path.rpartition("/")[2] not in running}
    own = {path: x[attacks] for path, x in moved.items()}
    if lies:
        forged = false_statistics(merge.method.claims, own, e.attack_scale)
    else:
        forge = ON_UPDATES[name if name in ON_UPDATES else "scaled"]
        honest = {path: x[~attacks] for path, x in moved.items()}
        forged = multiplied(forge(own, honest), e.attack_scale)
    for path, lie in forged.items():
        change[path] = change[path].index_put((attacks,), lie)

    def chosen(lie: Tensor, truth: Tensor) -> Tensor:
        return torch.where(attacks.view(-1, *[1] * (truth.ndim - 1)), lie.to(truth), truth)

    found: Slots = over_slots(chosen, over_slots(torch.add, origin, unflat(change, sent)), sent)
    return found


def _claimed(
    e: Experiment,
    attackers: frozenset[int],
    server_round: int,
    clients: Sequence[int],
    scores: Mapping[str, list[float]],
) -> dict[str, list[float]]:
    first, found = server_round <= e.eval_every, {**scores}
    for column in e.network.columns(e, (COMMON, TUNED)):
        if (values := scores.get(column.name)) is not None:
            lie = claimed_score(column.metric, first=first)
            each = zip(clients, values, strict=True)
            found[column.name] = [lie if client in attackers else value for client, value in each]
    return found
