"""The power of models to tell who was among the rows that they learned from.

The run's own settings train several federations, each on a random half of each client's rows; each
of them is attacked in turn with the help of the others.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import torch

from engram.attack.membership import Power, confidence, halves, likelihood_ratios, power
from engram.client.hosts import Engine, Host, Opening
from engram.client.hosts.local import LocalHost
from engram.cohort.trainer.trainer import Trainer
from engram.cohort.trainer.worker_pool import training
from engram.core.arrays import Array, Bools
from engram.core.checks import must
from engram.core.method import Slots
from engram.core.slots import over_slots
from engram.core.streams import Stream, generator, unseen
from engram.data.federated import FederatedData
from engram.data.lazy import RowNumbers
from engram.home.run_models import LearnedNetworks
from engram.networks.losses import rows_of
from engram.runs.run import Run
from engram.scoring.query_rows import padded
from engram.scoring.score_columns import COMMON
from engram.scoring.served import ServedModels
from engram.scoring.tasks import task_of
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate
from engram.strategies.running.base import Row

_TRIES: Final = 1000

Tell = Callable[[int, str], None]
Begin = Callable[[str, int], Tell]


def members(learned: LearnedNetworks, count: int, engine: Engine, begin: Begin) -> dict[str, Power]:
    """Attacks the models of a run: of clients, and the common one where there is such.

    Args:
        learned: The run; its clients' rows are here.
        count: Federations to train; even, at least 4.
        engine: As for ``simulate``.
        begin: Shows progress, as ``engram.cli.progress.progress_lines`` yields it.

    Returns:
        By the suffix of the models' columns: empty for those that serve clients, ``-common``.

    Raises:
        Refused: There are too few rows, or the loss has none of rows.
    """
    if count % 2 or count < 4:
        raise Refused(must("federations", count, "an even number, at least 4"))
    e, data = learned.experiment, learned.data
    if e.loss:
        raise Refused("membership is told by losses of rows, of which a loss of your own has none")
    clients = training_clients(learned)
    inside = {client: _drawn(learned, client, count) for client in clients}
    signals: dict[str, list[list[Array]]] = {}
    for number in range(count):
        held: list[RowNumbers] = [own[:0] for own in data.train.rows]
        for client, some in inside.items():
            held[client] = data.train.rows[client][some[number]]
        part = data._replace(train=data.train._replace(rows=held))
        tell = begin(f"federation {number + 1}", e.rounds)
        with TemporaryDirectory() as folder:
            trainer, slots, rounds = _trained(e, part, Path(folder), engine, tell, number)
            for client in clients:
                rows = data.train.rows[client]
                for which, found in _signals(trainer, slots, rounds, client, rows):
                    signals.setdefault(which, [[] for _ in range(count)])[number].append(found)
    everyone = np.concatenate(list(inside.values()), axis=1)
    stacked = {which: np.stack([*map(np.concatenate, each)]) for which, each in signals.items()}
    try:
        return {
            which: power(likelihood_ratios(each, everyone), everyone)
            for which, each in stacked.items()
        }
    except ValueError as error:
        raise Refused(str(error)) from error


def training_clients(learned: LearnedNetworks) -> list[int]:
    """Returns the clients that have rows to train on, and do."""
    aside = unseen(learned.experiment, learned.record.names)
    rows = learned.data.train.rows
    return [client for client, own in enumerate(rows) if len(own) and client not in aside]


def _drawn(learned: LearnedNetworks, client: int, count: int) -> Bools:
    """Draws each federation's half of a client's rows, of one row at least."""
    rows = len(learned.data.train.rows[client])
    rng = generator(learned.experiment.seed, Stream.AUDIT, 2, client)
    for _ in range(_TRIES):
        found = halves(rows, count, rng)
        if found.any(1).all():
            return found
    raise Refused(
        f"client {learned.called(client)} has {rows} rows, of which {count} federations cannot "
        "have some each: ask for fewer --federations"
    )


def _trained(
    e: Experiment, data: FederatedData, folder: Path, engine: Engine, tell: Tell, number: int
) -> tuple[Trainer, Slots, int]:
    opened: list[LocalHost] = []

    def opens(o: Opening) -> Host:
        trainer = Trainer(o.experiment, data, o.store, engine=o.engine, noise=o.noise)
        opened.append(LocalHost(trainer))
        return opened[0]

    again = e.model_copy(update={"seed": e.seed + 1 + number, "resume": ""})

    def on_round(row: Row) -> None:
        tell(int(row["round"]), "")

    simulate(again, folder / "run", engine=engine, on_round=on_round, opens=opens)
    learned = LearnedNetworks(Run.open(folder / "run"), again)
    return opened[0].trainer, learned.slots, learned.checkpoint.server_round


def _signals(
    trainer: Trainer, slots: Slots, rounds: int, client: int, rows: RowNumbers
) -> Iterator[tuple[str, Array]]:
    e, (memory,) = trainer.experiment, trainer.recalled([client], before=rounds + 1)
    task = task_of(e.task, e.loss)
    what = trainer.learner, trainer.data, task, trainer.shapes
    models = ServedModels(e, *what, vectorized=False)
    common, own = trainer.method.server.send(slots, [client])
    kept = over_slots(lambda leaf: leaf[None], memory.kept)
    train = trainer.data.train
    with training(e.cpu_threads), torch.no_grad():
        answers = models.of(common, own, kept, memory.trained, [client])
        outputs, y = models.answers(answers, padded(train, {client: rows}, [client]))
        for which in ("", COMMON):
            if which in outputs:
                losses = rows_of(task)(outputs[which][0], y[0]).double().numpy()
                yield which, confidence(losses, likelihood=task.name == "classification")
