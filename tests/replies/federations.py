"""Small federations of every family, some of whose sites send what a test puts in their replies."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.server.run import run as run_on
from engram.settings.experiment import Experiment
from engram.simulations.grid import InProcessGrid
from engram.wire.messages import Content, Question, Reply
from tests.support import small, write_npz

SITES, ROWS = 10, 10

Change = Callable[[str, int, Content], Content | None]


class Odd(InProcessGrid):
    """A grid on which what some sites send is changed, or lost.

    Args:
        host: Hosts the clients, one on each node.
        sites: How many there are.
        change: ``(kind, client, content) -> content``, or None for no reply at all. A kind is the
            message's type, and what it asks about where it says so.
    """

    def __init__(self, host, sites: int, change: Change) -> None:
        super().__init__(host, [[client] for client in range(sites)])
        self._change = change

    def ask(self, questions: Iterable[Question], *, timeout: float) -> list[Reply]:
        return [
            changed
            for reply in super().ask(questions, timeout=timeout)
            if (changed := self._changed(reply)) is not None
        ]

    def _changed(self, reply: Reply) -> Reply | None:
        if reply.error:
            return reply
        question = reply.question
        content = self._change(_kind(question), question.node - 1, reply.content)
        return None if content is None else Reply(question, content)


def _kind(question: Question) -> str:
    records = question.content
    asked = records["config"].get("asked") if "config" in records else None
    return question.kind + (f" {asked}" if asked else "")


def federations(folder: Path) -> dict[str, dict]:
    """Writes small data sets; returns settings for each family, and for parts of their replies."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(SITES), ROWS)
    x = rng.normal(size=(len(task), 3))
    y = x @ [1.0, 2.0, 3.0] + rng.normal(size=len(task))
    classes = write_npz(folder / "classes.npz", x=x.astype("f4"), y=(y > 0).astype(int), task=task)
    images = rng.normal(size=(len(task), 1, 8, 8)).astype("f4")
    images = write_npz(folder / "images.npz", x=images, y=(y > 0).astype(int), task=task)
    values = write_npz(folder / "values.npz", x=x, y=y, task=task)
    rows = {"num_rounds": 2, "eval_every": 1, "hidden": "2", "clients_per_round": SITES}
    rows |= {"method": "fedavg", "dataset": classes, "partition": "natural"}
    tables = {"method": "molar", "dataset": values}
    quick = {"num_rounds": 4, "replay_batch": 2, "replay_rows": 2, "meta_steps": 1, "hidden": "2"}
    targets = {"dataset": values, "task": "regression", "standardize": "federation"}
    return {
        "classes": rows,
        "targets": rows | targets,
        "images": rows | {"dataset": images, "model": "resnet"},
        "tables": tables,
        "adaptive": tables | {"sharing": "adaptive"},
        "exchanges": {"method": "molar", "dataset": "sparse-logistic", "family": "logistic"}
        | {"sharing": "adaptive"},
        "bandit": {"method": "molar-bandit", "dataset": "sparse-linear"},
        "meta": {"method": "meta-ban", "dataset": "linear-groups", **quick},
    }


def grid_of(experiment, change: Change, store=None) -> Odd:
    host = host_of(Opening(experiment, store or RamStore()))
    return Odd(host, experiment.num_clients, change)


def settings_of(**settings: Any) -> Experiment:
    """An experiment in which nobody waits."""
    return small(**{"num_clients": SITES, "min_clients": 3, "timeout": 1e-6} | settings)


def run(folder: Path, change: Change, **settings):
    """Returns a federation's results, and the rows of its record."""
    e, store, rows = settings_of(**settings), RamStore(), []
    grid = grid_of(e, change, store)
    found = run_on(grid, e, folder, engine="vectorized", memories=store, on_round=rows.append)
    return found, rows
