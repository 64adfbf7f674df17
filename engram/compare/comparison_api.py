"""Comparisons from Python: methods side by side, and their tables for a paper."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from engram.api import Run, executes
from engram.arguments import REFERENCES, arguments, read_experiment
from engram.cli.console import in_html
from engram.cli.progress import interruptible, shows
from engram.client.hosts import Engine
from engram.compare.comparison_folder import contestants, read_plan, runs_of
from engram.compare.comparison_run import begin_comparison, go_on
from engram.compare.paper_tables import latex, pairs, per_client, summary
from engram.compare.report_rows import report_rows, shown_rounds
from engram.compare.reports.local import drawn, shown
from engram.compare.results import Results, metric_called, metrics_of, results_of
from engram.compare.settings_for_methods import named_methods
from engram.core.process_modes import own_modes
from engram.data.file_models import readable
from engram.data.readers.in_memory import Data
from engram.data.source import Source
from engram.python_arguments import settings_of_several
from engram.runs import run as recorded
from engram.runs.run_places import data_name, find_run, new_folder
from engram.settings.errors import Refused, told_with
from engram.settings.experiment import lists_settings
from engram.settings.files import replace_file


class Comparison:
    """Methods side by side, each over the same seeds.

    Attributes:
        folder: Where the runs are recorded, one folder each.
        runs: By method, its runs.
        stopped: Runs that have stopped, as by divergence, and why; no table includes them.
        round: The round of each run that all tables are of: the one that validation rows ``picked``
            for each model, or the ``last``.
    """

    def __init__(
        self,
        folder: Path,
        runs: Mapping[str, Sequence[Run]],
        stopped: Sequence[str] = (),
        round: str = "picked",  # noqa: A002 - what it is
    ) -> None:
        self.folder = folder
        self.runs = runs
        self.stopped = stopped
        self.round = round

    def __repr__(self) -> str:
        return f"Comparison({str(self.folder)!r}: {', '.join(self.runs)})"

    def __str__(self) -> str:
        """Returns its answer in a sentence, its table, and a line for each run that has stopped."""
        table = shown(self.folder, self._records) if self.runs else repr(self)
        return "\n".join([table, *(f"stopped: {line}" for line in self.stopped)])

    def _repr_html_(self) -> str:
        answer = self.summary().attrs["answer"] if self.runs else repr(self)
        return in_html([answer, *(f"stopped: {line}" for line in self.stopped)], self.table)

    @property
    def table(self) -> pd.DataFrame:
        """Means over each method's runs, as ``engram compare`` prints them.

        A method has a row of the models that serve clients, and one of these after fine-tuning,
        where they were scored so; ``accuracy`` is of the row's models.
        """
        rows = report_rows(self._records) if self.runs else {"method": []}
        return pd.DataFrame(rows).set_index("method")

    @own_modes()
    def plot(self, metric: str = "") -> Figure:
        """Draws a metric, as ``Run.plot``, with a band from the lowest to the highest seed."""
        return drawn(self._records, metric)

    def summary(self) -> pd.DataFrame:
        """Returns a row for each model and reference: figures of every metric, for a paper.

        See ``engram.compare.paper_tables.summary`` for the columns. ``attrs["answer"]`` of the
        frame is the answer in a sentence, by the first metric.
        """
        return summary(self._results())

    def per_client(self, metric: str = "") -> pd.DataFrame:
        """Returns a row for each client of each seed, and a column for each model and reference.

        The column ``unseen`` says which clients never train.
        ``metric`` is by default the first.
        """
        (results,) = self._results(metric)
        return per_client(self._records, results)

    def significance(self, metric: str = "") -> pd.DataFrame:
        """Returns a row for each pair of models: the mean difference, and its interval.

        ``shown`` says whether the interval excludes zero; all of them hold together with a
        probability of 95 %, over other clients and other seeds.
        ``metric`` is by default the first.
        """
        (results,) = self._results(metric)
        return pairs(results)

    def to_csv(self, path: str | Path) -> Path:
        """Writes ``summary`` into a new file."""
        return _written(Path(path), self.summary().to_csv())

    def to_latex(self, path: str | Path | None = None, *, width: str = "one") -> str:
        """Formats a table for a paper, for the package booktabs; also into a new file.

        Args:
            path: The file; None for none.
            width: ``one`` column of a paper, with the means; or ``two``, with what is behind them.

        Raises:
            Refused: The table does not fit, or the file is there already.
        """
        table = latex(self._results(), width)
        if path is not None:
            _written(Path(path), table)
        return table

    def _results(self, name: str | None = None) -> list[Results]:
        """Returns the results by a metric, "" for the first, or by all."""
        if not (runs := self._records):
            raise Refused(f"{self.folder} has no run that has been evaluated")
        with readable(self.folder):
            metrics = metrics_of(runs)
            chosen = metrics if name is None else [metric_called(name, metrics)]
            return results_of(self.folder, runs, chosen)

    @property
    def _records(self) -> dict[str, list[recorded.Run]]:
        runs = self.runs.items()
        found = {name: [recorded.Run.open(run.folder) for run in each] for name, each in runs}
        return shown_rounds(found, self.round)


@lists_settings
@own_modes()
def compare(
    data: Data | None = None,
    *,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
    seeds: int = 5,
    tuned: bool | int | tuple[int, int] = False,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    engine: Engine = "vectorized",
    progress: bool = True,
    references: str | Sequence[str] = tuple(REFERENCES),
    **settings: Any,
) -> Comparison:
    """Runs methods that train networks side by side, on the same data.

    Args:
        data: As for ``simulate``.
        methods: Their names, or one; by default some that are often compared. In a dictionary,
            each name has the method's own settings: ``{"ditto": {"eta": 0.3}, "fedavg": {}}``.
            Those that every comparison has are added.
        seeds: Runs of each, from the setting ``seed`` upwards.
        tuned: Whether each method is tuned first, as by ``engram.tune``, on seeds after these:
            ``True`` (32 trials on as many seeds), the number of trials, or ``(trials, seeds)``.
        out: Folder of the comparison; by default a new one in ``runs/``.
        resume: Instead, a comparison to go on with; all else is given as when it was begun.
        engine: As for ``simulate``.
        progress: Whether to show progress.
        references: Models without a network to compare with: ``constant`` (of each client's
            training rows), ``linear`` (each client's own) and ``pooled`` (linear, on all rows);
            ``none`` for none.
        **settings: Each is applied to every method that has it; for one method's own, see
            ``methods``.

    Raises:
        Refused: If settings or data are impossible, or nobody has one of the settings.
    """
    if resume is not None and out is not None:
        raise Refused("out and resume exclude each other: a comparison stays in its folder")
    given, wrong = arguments(
        engine=engine, seeds=seeds, tuned=tuned, out=out, progress=progress, references=references
    )

    def settings_of_each() -> dict[str, dict[str, Any]]:
        return settings_of_several(data, contestants(named_methods(methods)), settings, methods)

    each, shown = told_with(wrong, settings_of_each), shows(progress)
    first = read_experiment(next(iter(each.values())))
    begun = None if resume is None else find_run(str(resume))
    new = new_folder(given.out, f"compare-{data_name(first)}")
    with interruptible(), nullcontext(begun) if begun else new as folder:
        to_do = given.engine or "vectorized", each, given.seeds, given.tuned, given.references
        begin_comparison(folder, *to_do, progress=shown, begun=begun is not None)
        source = None if data is None else first.source
        again = f"engram.compare(..., resume={str(folder)!r})"
        stopped = go_on(folder, executes, again, processes=1, source=source, progress=shown)
    return Comparison(folder, _finished(folder, source), stopped)


def load_comparison(comparison: str | Path, *, round: str = "picked") -> Comparison:  # noqa: A002
    """Opens a comparison: its folder, or its name in ``runs/``.

    Runs that are not finished have no part in it; ``stopped`` names them.
    ``round`` is what its tables are of: ``picked`` by validation rows, or ``last``.

    Raises:
        Refused: If there is none, or it is damaged, or there is no such round.
    """
    given, wrong = arguments(run=comparison)
    folder = told_with(wrong, lambda: find_run(str(given.run)))
    shown_rounds({}, round)
    with readable(folder):
        runs = _finished(folder)
    ended = {run.folder.name for each in runs.values() for run in each}
    stopped = [f"{name}: not finished" for name in read_plan(folder)["runs"] if name not in ended]
    return Comparison(folder, runs, stopped, round)


def _finished(folder: Path, source: Source | None = None) -> dict[str, list[Run]]:
    plan = read_plan(folder)["runs"]
    runs: dict[str, list[Run]] = {}
    for path in runs_of(folder, "results.json"):
        runs.setdefault(plan[path.name]["method"], []).append(Run(path, source))
    return runs


def _written(path: Path, text: str) -> Path:
    if path.exists() or path.is_symlink():
        raise Refused(f"{path} is there already: give another name")
    if not path.parent.is_dir():
        raise Refused(f"{path} cannot be written: there is no folder {path.parent}")
    replace_file(path, text.encode())
    return path
