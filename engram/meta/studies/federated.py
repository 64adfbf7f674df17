"""Federated image classification: Table 5 of the MOML paper, with published values."""

import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import product
from logging import WARNING, getLogger
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from engram.cli.console import new_table, plus_minus
from engram.compare.figures import COLORS, finish, panels
from engram.meta.studies.published import FEDERATED_ROWS, FEDERATED_SETTINGS, TABLE_5
from engram.meta.studies.settings import FederatedSettings
from engram.scoring.intervals import deviation
from engram.scoring.score_columns import COMMON, TUNED
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate
from engram.simulations.job_pool import Job, Pool, Progress, Row
from engram.studies.study import Report
from engram.studies.summaries import grouped

_CASE: Final = ("tasks", "local-steps", "method")
_MACHINES: Final = 4
_CLIENTS: Final = 50
_POINTS: Final = 20  # of a curve
_SHOTS, _STEPS, _STEP_SIZE = 5, 10, 0.001  # of fine-tuning; its step is alpha

_CAPTION: Final = """\
Accuracy in % of 50 clients on their query rows, mean ± s.d. over seeds: after 10 steps of
fine-tuning on 5 rows, and the paper's; of the common model; of the model that serves a client;
milliseconds a round"""


def work(settings: FederatedSettings, pool: Pool) -> list[Row]:
    """Trains and scores all methods."""
    s, jobs = settings, dict[str, Job]()
    for tasks, steps, method, seed in product(s.tasks, s.local_steps, s.methods, range(s.seeds)):
        config = _experiment(s, method, tasks, steps, seed).to_config()
        jobs[f"{method}-b{tasks}-h{steps}-{seed}"] = partial(_run, config, tasks)
    return pool.run(jobs)


def _experiment(s: FederatedSettings, method: str, tasks: int, steps: int, seed: int) -> Experiment:
    train, test = FEDERATED_ROWS[s.published]
    shared = {
        "dataset": s.dataset,
        "data-dir": str(s.data_dir.absolute()),
        "num-clients": _CLIENTS,
        "partition": "halves",
        "rows-per-class": train,
        "test-rows-per-class": test,
        "hidden": "40,40",
        "shards": _MACHINES,
        "clients-per-round": _MACHINES * tasks,
        "local-steps": steps,
        "batch-size": 5,
        "num-rounds": s.rounds,
        "eval-every": max(1, s.rounds // _POINTS),
        "checkpoint-every": s.rounds,
        "protocol": "few-shot",
        "adapt-shots": _SHOTS,
        "adapt-steps": _STEPS,
        "adapt-lr": _STEP_SIZE,
        "seed": seed,
        "method": method,
    }
    own = {f"{method}.{key}": value for key, value in FEDERATED_SETTINGS[method].items()}
    return Experiment.from_config(shared | own)


def _run(config: dict[str, Any], tasks: int, progress: Progress) -> list[Row]:
    getLogger("flwr.engram").setLevel(WARNING)  # a line for each run is too many here
    e = Experiment.from_config(config)
    rounds, curve = [], []

    def on_round(row: Row) -> None:
        progress(row["round"], e.num_rounds)
        if "accuracy" in row:
            rounds.append(row["round"])
            curve.append(_tuned(row))

    with tempfile.TemporaryDirectory(prefix="engram-") as folder:
        found = simulate(e, Path(folder) / "run", on_round=on_round)
    return [
        {
            "method": e.method,
            "tasks": tasks,
            "local-steps": e.local_steps,
            "seed": e.seed,
            "accuracy": _tuned(found),
            "common": found.get(f"accuracy{COMMON}"),
            "served": found["accuracy"],
            "ms": found["ms-per-round"],
            "rounds": rounds,
            "errors": [1 - value for value in curve],
        }
    ]


def _tuned(row: Row) -> float:
    """Returns the accuracy after fine-tuning; some methods serve clients by such models anyway."""
    return float(row[next(n for n in (f"accuracy{TUNED}", "accuracy") if n in row)])


def report(settings: FederatedSettings, done: Sequence[Row]) -> Report:
    """Makes the table and the plot."""
    rows = summarize(settings, done)
    return Report([_CAPTION, _table(rows)], {"rows": rows}, {"convergence.png": _draw(done)})


def summarize(settings: FederatedSettings, done: Sequence[Row]) -> list[Row]:
    """Returns a row for each number of tasks, of local steps, and method, over its seeds."""
    return [_row(settings.published, case, runs) for case, runs in grouped(done, *_CASE).items()]


def _row(dataset: str, case: tuple[Any, ...], runs: Sequence[Row]) -> Row:
    tasks, steps, method = case
    accuracy = 100 * np.array([run["accuracy"] for run in runs])
    paper = TABLE_5[dataset].get((tasks, steps), {}).get(method, (None, None))
    return {
        "tasks": tasks,
        "local-steps": steps,
        "method": method,
        "seeds": len(runs),
        "accuracy": float(accuracy.mean()),
        "accuracy-std": deviation(accuracy),
        "common": _mean_if_all([run["common"] for run in runs]),
        "served": _mean_if_all([run["served"] for run in runs]),
        "ms": float(np.median([run["ms"] for run in runs])),
        "published": paper[0],
        "published-std": paper[1],
    }


def _mean_if_all(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return 100 * float(np.mean(found)) if len(found) == len(values) else None


def _table(rows: Sequence[Row]) -> Table:
    found = new_table(["method"], ["accuracy", "paper", "common", "served", "ms"])
    for (tasks, steps), some in grouped(rows, "tasks", "local-steps").items():
        found.add_section()
        found.add_row(f"B = {tasks}, H = {steps}")
        for row in some:
            pairs = [plus_minus(row[n], row[f"{n}-std"]) for n in ("accuracy", "published")]
            means = [plus_minus(row[n], None) for n in ("common", "served")]
            found.add_row(row["method"], *pairs, *means, plus_minus(row["ms"], None, 1))
    return found


def _draw(done: Sequence[Row]) -> bytes:
    cases = grouped(done, "tasks", "local-steps")
    figure, all_axes = panels(len(cases), size=(3.6 * len(cases) + 1.5, 3.6), sharey=True)
    for ((tasks, steps), some), axes in zip(cases.items(), all_axes, strict=True):
        for color, ((method,), runs) in zip(COLORS, grouped(some, "method").items(), strict=False):
            curve = 100 * (1 - np.mean([run["errors"] for run in runs], axis=0))
            axes.plot(runs[0]["rounds"], curve, color=color, label=method)
        axes.set(title=f"B = {tasks}, H = {steps}", xlabel="round")
    all_axes[0].set_ylabel("accuracy after fine-tuning (%)")
    return finish(figure, all_axes[0])
