"""Attacks against defences: ``python -m benchmarks.robust --folder FOLDER``.

Each cell is a method on digits, dealt in one way, under one attack and one defence; it is run with
five seeds. ``--local-steps`` and ``--batch-size`` set the rows of a client in a round.
``--method``, ``--partition``, ``--attack`` and ``--defence`` choose a part of the grid. Runs that
are done are kept in the folder, and seeds come one after the other: so a part that is stopped has
all cells, with fewer seeds, and goes on where it was.
"""

import statistics
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from benchmarks.harness import chosen, start
from benchmarks.losses import tables
from engram.attack.attacks import attackers_of, backdoor_success
from engram.cli.console import out
from engram.settings.errors import EngramError, Refused
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate
from engram.simulations.job_pool import Pool, Progress, Row

CLIENTS: Final = 20
METHODS: Final = ("fedavg", "local-moml", "ditto", "fedpac", "ifca", "fedproto")
CLAIMANTS: Final = ("fedas", "fedpac", "ifca", "fedproto")
"""Methods whose clients send claims, which ``false-statistics`` are of."""
OTHERS: Final = ("cfl", "fedamp", "fedas", "feddbe", "fedfomo", "pfedhn", "scaffold")
"""Methods with statistics of their own, or servers that see every update, for ``--method``."""
PARTITIONS: Final[dict[str, dict[str, Any]]] = {
    "iid": {"partition": "iid"},
    "halves": {"partition": "halves"},
    "dirichlet": {"partition": "dirichlet", "dirichlet_alpha": 0.5},
}
ATTACKS: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "sign-flip": {"attack": "sign-flip"},
    "sign-flip-60": {"attack": "sign-flip:60"},
    "alie": {"attack": "alie"},
    "ipm": {"attack": "ipm"},
    "label-flip": {"attack": "label-flip"},
    "backdoor": {"attack": "backdoor"},
    "backdoor-5": {"attack": "backdoor:5"},
    "false-rows": {"attack": "false-rows"},
    "false-statistics": {"attack": "false-statistics:60"},
}
DEFENCES: Final[dict[str, dict[str, Any]]] = {
    "none": {"max_norm": 1e9, "max_weight": 1e9},
    "bound": {},
    "median": {"merge": "median"},
    "trimmed-mean": {"merge": "trimmed-mean"},
    "multi-krum": {"merge": "multi-krum"},
    "geometric-median": {"merge": "geometric-median"},
    "centered-clipping": {"merge": "centered-clipping"},
    "nearest-mixing": {"merge": "nearest-mixing"},
    "centered-clipping-2": {"merge": "centered-clipping", "bucket_size": 2},
}
"""``none`` has no bound on norms and rows, but still leaves out what is impossible; ``bound`` is
the default."""


class Cell(NamedTuple):
    """A run of the grid, by the names of its parts."""

    method: str
    partition: str
    attack: str
    defence: str
    attackers: float
    rounds: int
    seed: int
    local_steps: int = 5
    batch_size: int = 5

    @property
    def experiment(self) -> Experiment:
        """The settings.

        Raises:
            Refused: The method does not go with the attack or the defence.
        """
        trimmed = {"num_malicious": round(self.attackers * CLIENTS)}
        given = {
            "num_clients": CLIENTS,
            "clients_per_round": CLIENTS,
            "num_rounds": self.rounds,
            "eval_every": self.rounds,
            "local_steps": self.local_steps,
            "batch_size": self.batch_size,
            "attackers": self.attackers,
            **PARTITIONS[self.partition],
            **ATTACKS[self.attack],
            **DEFENCES[self.defence],
            **(trimmed if "merge" in DEFENCES[self.defence] else {}),
        }
        return Experiment(method=self.method, seed=self.seed, **given)

    @property
    def name(self) -> str:
        """The name of the file of its row."""
        return "_".join(map(str, self))


def cells(
    methods: Iterable[str],
    partitions: Iterable[str],
    attacks: Iterable[str],
    defences: Iterable[str],
    *,
    attackers: float,
    rounds: int,
    seeds: int,
    local_steps: int = 5,
    batch_size: int = 5,
) -> Iterator[Cell]:
    """Yields the runs of a part of the grid, seed by seed, without those that are impossible."""
    parts = [
        (method, partition, attack, defence)
        for method in methods
        for partition in partitions
        for attack in attacks
        for defence in defences
    ]
    for seed in range(seeds):
        for part in parts:
            cell = Cell(*part, attackers, rounds, seed, local_steps, batch_size)
            try:
                cell.experiment  # noqa: B018 - is only looked at, to see whether it is possible
            except Refused:
                continue
            if cell.attack != "false-statistics" or cell.method in CLAIMANTS:
                yield cell


def run(cell: Cell, tell: Progress) -> list[Row]:
    """Returns a run's row: means over the clients that do not attack, after the last round.

    A run that diverges, or in which nobody's update can be used, scores 0.
    """
    e = cell.experiment
    row: Row = {**cell._asdict(), "accuracy": 0.0, "errors": [1.0]}
    with tempfile.TemporaryDirectory(prefix="engram-") as made:
        folder = Path(made) / "run"
        try:
            found = simulate(e, folder)
        except EngramError as error:
            return [row | {"stopped": str(error)}]
        scores, bad = found["clients"], attackers_of(e)
        for name in ("accuracy", "accuracy-common"):
            if name in scores:
                each = zip(scores["ids"], scores[name], strict=True)
                row[name] = statistics.fmean(x for c, x in each if c not in bad)
        row["errors"] = [1 - row["accuracy"]]
        if e.attack_kind == "backdoor":
            row |= backdoor_success(e, folder)
    tell(1, 1)
    return [row]


def main(
    folder: Annotated[Path, typer.Option(help="where rows are kept; goes on with those there")],
    method: Annotated[str, typer.Option(help="with commas")] = ",".join(METHODS),
    partition: Annotated[str, typer.Option(help="with commas")] = ",".join(PARTITIONS),
    attack: Annotated[str, typer.Option(help="with commas")] = ",".join(ATTACKS),
    defence: Annotated[str, typer.Option(help="with commas")] = ",".join(DEFENCES),
    attackers: Annotated[float, typer.Option(min=0, max=0.5)] = 0.2,
    rounds: Annotated[int, typer.Option(min=1)] = 100,
    seeds: Annotated[int, typer.Option(min=1)] = 5,
    local_steps: Annotated[int, typer.Option(min=1)] = 5,
    batch_size: Annotated[int, typer.Option(min=1)] = 5,
    processes: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Runs what is left of a part of the grid, and prints its tables."""
    jobs = {
        cell.name: partial(run, cell)
        for cell in cells(
            chosen(method, METHODS + OTHERS),
            chosen(partition, PARTITIONS),
            chosen(attack, ATTACKS),
            chosen(defence, DEFENCES),
            attackers=attackers,
            rounds=rounds,
            seeds=seeds,
            local_steps=local_steps,
            batch_size=batch_size,
        )
    }
    pool = Pool(
        folder, begin=lambda: folder.mkdir(parents=True, exist_ok=True), processes=processes
    )
    out.print(f"{len(pool.left(jobs))} of {len(jobs)} runs are left")
    for found in tables(pool.run(jobs)):
        out.print(found)


if __name__ == "__main__":
    start(main)
