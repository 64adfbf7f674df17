"""The search: batches of settings train together, rungs drop the worst, validation decides.

Every trial runs on the same seeds. A batch trains until a quarter of the rounds, where the worse
half of it is dropped, and half of the rest at half of the rounds: successive halving. Jamieson,
Talwalkar. Non-stochastic Best Arm Identification and Hyperparameter Optimization. AISTATS 2016.
"""

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any, Final, NamedTuple

from engram.cohort.trainer.worker_pool import training
from engram.data.federated import FederatedData
from engram.scoring.metrics import Metric
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.fields import Scalar
from engram.settings.network import NetworkMethod
from engram.simulations.job_pool import Progress, Tell
from engram.strategies.running.rounds import rounds
from engram.tune.proposals import propose
from engram.tune.record import Trial, ranked
from engram.tune.runs import Member, Stacked, members_of
from engram.tune.space import ADAPT_LR, Space, fine_tuning_steps

_BATCHES: Final = 4  # from each of which the next one learns
_LEAST: Final = 4  # trials in a batch, if there are as many
_RUNGS: Final = (1 / 4, 1 / 2)  # of the rounds, where half of a batch is dropped


class TimeIsUp(Exception):
    """The budget of time is spent."""


class Search(NamedTuple):
    """The settings that are searched, and their ranges.

    Attributes:
        fixed: The settings that all trials have, with the method's name.
        space: The other ones.
        trials: How many to try.
        seeds: Seeds of the runs of each trial.
    """

    fixed: Mapping[str, Any]
    space: Space
    trials: int
    seeds: Sequence[int]

    @property
    def first(self) -> Experiment:
        """The settings before any is searched."""
        return Experiment.from_config(dict(self.fixed))

    @property
    def metric(self) -> Metric:
        """The metric that decides: the first of the run's."""
        return self.first.of(NetworkMethod).metrics(self.first)[0]

    def best_of(self, trials: Sequence[Trial]) -> Trial | None:
        """Returns the best of the trials with the most rounds; None if none has a score."""
        return next(iter(ranked(trials, self.metric.sign)), None)

    @property
    def step_sizes(self) -> list[float]:
        """Step sizes of fine-tuning to choose among, where this is neither fixed nor searched."""
        searched = {dimension.key for dimension in self.space}
        return [] if ADAPT_LR in searched | self.fixed.keys() else fine_tuning_steps()

    @property
    def choices(self) -> list[tuple[str, Scalar]]:
        """Each setting that is searched among values, and a value: all of them."""
        return [(dimension.key, value) for dimension in self.space for value in dimension.choices]

    def experiments(self, settings: Mapping[str, Scalar]) -> list[Experiment]:
        """Returns a trial's runs.

        Raises:
            Refused: The method refuses these settings together.
        """
        first = Experiment.from_config({**self.fixed, **settings})
        return [first.model_copy(update={"seed": seed}) for seed in self.seeds]

    def settings_with(self, best: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Settings of a run with the best ones, the method's own as ``METHOD.key``.

        They are those that all trials have, and ``best``; the seed is the first after the search's.
        """
        seed = self.seeds[-1] + 1
        run = Experiment.from_config({**self.fixed, **best}).model_copy(update={"seed": seed})
        given = {"seed", *self.fixed, *best}
        config = {key: value for key, value in run.to_config().items() if key != "method"}
        own = f"{run.method}."
        return {"method": run.method} | {
            key: value
            for key, value in config.items()
            if key in given or key.removeprefix(own) in given
        }

    @property
    def batch(self) -> int:
        """Number of trials that train together."""
        return max(_LEAST, math.ceil(self.trials / _BATCHES))


def search(
    plan: Search,
    known: Sequence[Trial],
    note: Callable[[Trial], None],
    tell: Progress,
    end: float = math.inf,
) -> list[Trial]:
    """Runs the trials that are not decided yet.

    Args:
        plan: What to search.
        known: The trials of an earlier search that this one goes on with. Those of a batch that was
            not finished are run again.
        note: Called with each trial as soon as something is known of it.
        tell: Called after each round, in which all trials of a batch count as one run, with how
            many are done, of how many, and the best score in words or "".
        end: When time is up, by ``time.monotonic``.

    Raises:
        TimeIsUp: It was, before all trials were decided.
    """
    done = _whole_batches(known, plan)
    while len(done) < plan.trials:
        first, higher = plan.first, plan.metric.better == "higher"
        count = min(plan.batch, plan.trials - len(done))
        proposed = propose(plan.space, done, count, seed=plan.seeds[0], higher=higher)
        start = len(done)
        trials = [Trial(start + i, settings) for i, settings in enumerate(proposed)]
        before, total = (math.ceil(n / plan.batch) * first.rounds for n in (start, plan.trials))
        tell(before, total, "")  # the first round may be long in coming

        def on_round(number: int, found: str, before: int = before, total: int = total) -> None:
            tell(before + number, total, found)

        with training(first.cpu_threads):
            done += _Batch(plan, trials, note).run(done, on_round, end)
    return done


def _whole_batches(trials: Sequence[Trial], plan: Search) -> list[Trial]:
    whole = 0
    while whole < len(trials):
        stop = min(whole + plan.batch, plan.trials)
        if stop > len(trials) or not all(trial.decided for trial in trials[whole:stop]):
            break
        whole = stop
    return list(trials[:whole])


class _Batch:
    def __init__(self, plan: Search, trials: list[Trial], note: Callable[[Trial], None]) -> None:
        self._tell_of, self._metric, self._step_sizes = note, plan.metric, plan.step_sizes
        self._trials = {trial.number: trial for trial in trials}
        self._which = f"trials {trials[0].number + 1} to {trials[-1].number + 1} of {plan.trials}"
        self._runs: dict[int, list[Member]] = {}
        loaded: dict[Hashable, FederatedData] = {}
        for trial in trials:
            try:
                self._runs[trial.number] = members_of(plan.experiments(trial.settings), loaded)
            except Refused as error:
                self._note(trial._replace(state="impossible", reason=str(error)))

    def run(self, old: Sequence[Trial], tell: Tell, end: float) -> list[Trial]:
        """Runs the trials to their ends, and returns them; ``old`` ones are decided."""
        if not self._runs:
            return list(self._trials.values())
        going, stacked = [*self._runs], Stacked([*chain.from_iterable(self._runs.values())])
        first = stacked.members[0].experiment
        total = first.rounds
        rungs = {*(max(1, round(part * total)) for part in _RUNGS), total}
        for step, _ in rounds(first, stacked.train):
            if step.number not in rungs:  # which are told of with their scores
                tell(step.number, "")
            if time.monotonic() > end:
                raise TimeIsUp
            if step.number not in rungs:
                continue
            going = self._scored(going, step.number)
            if not step.final:
                going = self._halved(going)
                stacked.keep([member for number in going for member in self._runs[number]])
            tell(step.number, self._in_words())
        best = ranked([*old, *self._trials.values()], self._metric.sign)[:1]
        for number in going:
            trial = self._trials[number]
            more = self._fine_tuned(number, total) if trial in best else {}
            self._note(trial._replace(state="done", settings=trial.settings | more))
        return list(self._trials.values())

    def _fine_tuned(self, number: int, total: int) -> dict[str, Scalar]:
        """Returns the best step size of fine-tuning, where models are fine-tuned beside the method.

        It changes nothing of what serves, so that it is chosen after the last round.
        """
        members, scores = self._runs[number], dict[float, float]()
        for size in self._step_sizes:
            score = self._metric.sign * fmean(member.validated(total, size) for member in members)
            if math.isfinite(score):
                scores[size] = score
            elif not scores:
                break  # there are no such models: the least step size does not diverge
        return {ADAPT_LR: max(scores, key=scores.__getitem__)} if scores else {}

    def _scored(self, going: Sequence[int], rung: int) -> list[int]:
        left = []
        for number in going:
            trial = self._trials[number]
            members = self._runs[number]
            reason = next((member.stopped for member in members if member.stopped), "")
            scores: list[float] = []
            if not reason:
                scores = [member.validated(rung) for member in members]
            if reason or not all(map(math.isfinite, scores)):
                reason = reason or f"diverged: its score after round {rung} is not finite"
                self._note(trial._replace(state="diverged", round=rung, scores=(), reason=reason))
                continue
            self._note(trial._replace(round=rung, scores=tuple(scores)))
            left.append(number)
        return left

    def _halved(self, going: Sequence[int]) -> list[int]:
        """Drops the worse half; the defaults, trial 0, stay to be compared with."""
        sign = self._metric.sign
        ranked = sorted(going, key=lambda n: -sign * (self._trials[n].value or 0.0))
        stay = ranked[: math.ceil(len(ranked) / 2)]
        stay += [0] if 0 in going and 0 not in stay else []
        for number in set(going) - set(stay):
            self._note(self._trials[number]._replace(state="dropped"))
        return sorted(stay)

    def _note(self, trial: Trial) -> None:
        self._trials[trial.number] = trial
        self._tell_of(trial)

    def _in_words(self) -> str:
        values = [trial.value for trial in self._trials.values() if trial.value is not None]
        if not values:
            return f"{self._which}, all diverged"
        metric = self._metric
        best = max(values, key=lambda value: metric.sign * value)
        return f"{self._which}, best {metric.name} {metric.with_unit(best)}"
