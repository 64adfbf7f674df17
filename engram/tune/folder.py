"""A folder of searches: one for each method, in a folder of its own."""

import json
import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pandas as pd

from engram.cli.console import err
from engram.cli.progress import Tell
from engram.compare.comparison_folder import SEARCHED, read_search
from engram.compare.figures import save
from engram.core.checks import must
from engram.data.readers.in_memory import read_given
from engram.guards.presets import protections
from engram.runs.run_places import make_folder
from engram.settings.errors import Refused, RunStopped
from engram.settings.experiment import Experiment, Impossible
from engram.settings.families import METHODS
from engram.settings.fields import Scalar
from engram.settings.files import replace_file
from engram.settings.plugins import load_plugins
from engram.simulations.job_pool import Pool, Progress, Row
from engram.tune.record import Trial, append, mend, read_trials
from engram.tune.results import BEST, draw_trials, in_one_file, in_toml, told, trial_rows
from engram.tune.runs import members_of
from engram.tune.search import Search, TimeIsUp, search
from engram.tune.space import space_of

_FEWEST: Final = 10  # validation rows of all clients together


class Tuning(NamedTuple):
    """Searches of methods' settings, with the same budget each.

    Attributes:
        fixed: For each method, the settings that all of its trials have.
        asked: What is searched, as ``space_of`` takes it; a method's own as ``METHOD.key=...``.
        trials: Trials of each method.
        seeds: Seeds of the runs of each trial.
        minutes: Of each method; None for no bound.
    """

    fixed: Mapping[str, Mapping[str, Any]]
    asked: Sequence[str]
    trials: int
    seeds: Sequence[int]
    minutes: float | None = None

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Reads the plan of a folder.

        Raises:
            Refused: There is none, or it is damaged.
        """
        return cls(**read_search(folder))

    def save(self, folder: Path) -> None:
        """Writes the plan, from which ``open`` reads it."""
        make_folder(folder)
        replace_file(folder / SEARCHED, json.dumps(self._asdict(), indent=2).encode())

    @property
    def first(self) -> Experiment:
        """The first method's settings, before any is searched."""
        name, given = next(iter(self.fixed.items()))
        return Experiment.from_config({"method": name, **given})

    def searches(self) -> dict[str, Search]:
        """Returns each method's search.

        Raises:
            Refused: Settings are impossible, nothing is to be searched, or nothing can decide.
        """
        return {name: self._search(name) for name in self.fixed}

    def _search(self, name: str) -> Search:
        given = {"method": name, **self.fixed[name]}
        experiment = Experiment.from_config(given)
        if not experiment.validates:
            raise Refused(
                "tuning needs validation rows: protocol must be standard, and validation-fraction "
                f"above 0, got {experiment.protocol} and {experiment.validation_fraction:g}"
            )
        if experiment.is_private:
            expected = (
                "none for tuning, which chooses by scores of clients' rows: these have no noise, "
                "and each trial would cost epsilon; tune on other clients' rows, and run what is "
                "found with privacy"
            )
            raise Refused(must("privacy", protections(experiment).name, expected))
        for key in ("participation", "start-from", "without", "clock"):  # unknown to stacked runs
            if told := experiment.to_config().get(key):
                raise Refused(must(key, told, "empty for tuning"))
        if experiment.attack != "none":
            raise Refused(must("attack", experiment.attack, "none for tuning"))
        own = {key.removeprefix(f"{name}."): value for key, value in self.fixed[name].items()}
        asked = [text for each in self.asked if (text := _for(name, each, list(self.fixed)))]
        return Search(given, space_of(name, own, asked), self.trials, self.seeds)

    def check(self, plan: Search) -> None:
        """Loads the data of a search, and checks that it can be run.

        Raises:
            Refused: Data, network and settings do not fit each other, nor do they with each of the
                values that a setting is searched among; there are too few validation rows; or it is
                not known which values of the metric are better.
        """
        if not plan.metric.declared:
            known = 'declared, where it is searched by: engram.metric(better="lower"), or "higher"'
            raise Refused(must(f"better of metric {plan.metric.name}", None, known))
        one = plan._replace(seeds=self.seeds[:1])
        (member,) = members_of(one.experiments({}))
        held = member.trainer.data.validation
        rows = sum(map(len, held.rows)) if held is not None else 0
        if rows < _FEWEST:
            raise Refused(
                f"tuning needs at least {_FEWEST} validation rows in all, got {rows}: raise "
                "validation-fraction"
            )
        for key, value in plan.choices:
            try:
                members_of(one.experiments({key: value}))
            except Impossible:
                pass  # beside other values of other settings it may be possible
            except Refused as error:
                raise Refused(f"search {key}={value}: {error}") from error

    def run(
        self,
        folder: Path,
        begin: Callable[[str, int], Tell],
        processes: int | None = 1,
        ray: str | None = None,
    ) -> dict[str, dict[str, Scalar]]:
        """Runs the rest of the searches; returns the best settings by method.

        Whatever ends it, the files have what is known by then.

        Args:
            folder: Of the searches.
            begin: Begins a line of progress, as ``Pool`` does.
            processes: How many methods are searched at once; with 1, in this process. None for
                one on each core that may be used.
            ray: Address of a Ray cluster that searches instead, one method on each core. All its
                machines must have the folder.

        Raises:
            Refused: Data in memory are not given again; time was up before anything was known;
                there is no cluster, or a machine of it lacks the folder; or both ``processes`` and
                ``ray`` are given.
            RunStopped: All trials of a method diverged; or a process was lost.
        """
        if self.first.source.in_memory:
            read_given(self.first.source, ())  # which a search that goes on may lack
        plans = self.searches()
        titles = {n: f"tuning {n} ({i} of {len(plans)})" for i, n in enumerate(plans, 1)}
        found: dict[str, dict[str, Scalar]] = {}
        pool = Pool(
            None,  # trials are kept, and no more
            begin=partial(self.save, folder) if ray else lambda: None,
            new_line=lambda name, total: begin(titles[name], total),
            processes=processes,
            ray=ray,
            resumed=folder,
        )
        try:
            begun = partial(_search_one, self, Path.cwd(), folder.absolute(), ray is not None)
            pool.run({name: partial(begun, name) for name in plans})
        finally:
            for name, plan in plans.items():
                found[name] = self._write(folder / name, name, plan)
        for name, best in found.items():
            trials = read_trials(folder / name)
            if not trials:
                raise Refused(f"minutes must suffice for one batch of trials, got {self.minutes:g}")
            if not best:
                raise RunStopped(without_score(trials))
            if not self.decided(trials):
                err.print(f"{name}: time is up", soft_wrap=True)
        first = [plan.settings_with({}) for plan in plans.values()]
        last = {name: plans[name].settings_with(best) for name, best in found.items()}
        self._write_best(folder, [], in_one_file(first, last))
        return found

    def _write(self, folder: Path, name: str, plan: Search) -> dict[str, Scalar]:
        trials = read_trials(folder)
        if not (best := plan.best_of(trials)):
            return {}
        table = pd.DataFrame(trial_rows(trials)).to_csv(index=False)
        replace_file(folder / "trials.csv", table.encode())
        save(draw_trials(name, trials, plan), folder / "trials.png")
        self._write_best(folder, [told(best, plan.metric)], plan.settings_with(best.settings))
        return best.settings

    def _write_best(
        self, folder: Path, more: Sequence[str], settings: Mapping[str, Scalar]
    ) -> None:
        first, last = self.seeds[0], self.seeds[-1]
        seeds = f"seeds {first} to {last}" if last > first else f"seed {first}"
        how = f"Found by engram tune {' '.join(self.fixed)}: {self.trials} trials each, {seeds}."
        beside = "With what was fixed for all trials, and the first seed after theirs."
        comments = (f"# {line}\n" for line in (how, *more, beside))
        replace_file(folder / BEST, ("".join(comments) + in_toml(settings)).encode())

    def search(self, folder: Path, name: str, tell: Progress) -> None:
        """Runs the rest of a method's search, until time is up."""
        end = math.inf if self.minutes is None else time.monotonic() + 60 * self.minutes

        def note(trial: Trial) -> None:
            if not (folder / SEARCHED).is_file():
                self.save(folder)
            make_folder(folder / name)
            append(folder / name, trial)

        with suppress(TimeIsUp):
            search(self._search(name), mend(folder / name), note, tell, end)

    def decided(self, trials: Sequence[Trial]) -> bool:
        """Whether a method's search is over."""
        return len(trials) == self.trials and all(trial.decided for trial in trials)


def without_score(trials: Sequence[Trial]) -> str:
    """Returns why a search found nothing, in words."""
    return f"no trial has a score: trial {trials[0].number}: {trials[0].reason}"


def _search_one(
    tuning: Tuning, home: Path, folder: Path, elsewhere: bool, name: str, tell: Progress
) -> list[Row]:
    """Runs a method's search, perhaps in a process that knows nothing of plug-ins yet.

    ``home`` is the folder that names of files begin from; ``elsewhere`` says whether this may be
    another machine.
    """
    if elsewhere and not (home.is_dir() and (folder / SEARCHED).is_file()):
        lacks = f"{socket.gethostname()} lacks {folder if home.is_dir() else home}"
        raise Refused(f"ray needs folders that all machines of the cluster share: {lacks}")
    with chdir(home):
        load_plugins()
        tuning.search(folder, name, tell)
    return []


def _for(name: str, text: str, methods: Sequence[str]) -> str:
    """Returns a request to search a setting without its method's name; "" if it is another's."""
    owner, _, rest = text.partition("=")[0].rpartition(".")
    if owner:
        if owner not in methods:
            raise Refused(f"search {text} is for a method that does not take part: {owner}")
        return text.removeprefix(f"{owner}.") if owner == name else ""
    others = {key for other in methods for key in METHODS[other].all_keys()}
    return "" if rest in others and rest not in METHODS[name].all_keys() else text
