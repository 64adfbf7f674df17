"""Proposals of trials by Optuna's tree-structured Parzen estimator.

Bergstra, Bardenet, Bengio, Kegl. Algorithms for Hyper-Parameter Optimization. NeurIPS 2011.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from engram.core.streams import Stream, generator
from engram.settings.errors import Refused
from engram.settings.fields import Scalar
from engram.tune.record import Trial
from engram.tune.space import Dimension, Space


def optuna_module() -> Any:
    """Imports Optuna.

    Raises:
        Refused: It is not installed.
    """
    try:
        import optuna  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise Refused("tuning needs Optuna: pip install 'engram[tune]'") from error
    return optuna


def propose(
    space: Space, known: Sequence[Trial], count: int, *, seed: int, higher: bool
) -> list[dict[str, Scalar]]:
    """Returns settings to try: a function of its arguments alone.

    Args:
        space: Where to search.
        known: The trials so far; those that were dropped count for less than those that were not.
        count: How many to return. Before any trial is known, the first are the defaults.
        seed: Of the random numbers.
        higher: Whether higher values are better.
    """
    optuna = optuna_module()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    drawn = int(generator(seed, Stream.TUNING, len(known)).integers(2**31))
    sampler = optuna.samplers.TPESampler(seed=drawn, multivariate=True, constant_liar=True)
    study = optuna.create_study(direction="maximize" if higher else "minimize", sampler=sampler)
    where = {dimension.key: _distribution(dimension) for dimension in space}
    study.add_trials([_told(trial, space, where) for trial in known])
    begin = [] if known else [{dimension.key: dimension.default for dimension in space}]
    asked = [study.ask(where).params for _ in range(count - len(begin))]
    return begin + [{d.key: _readable(d, params[d.key]) for d in space} for params in asked]


def _distribution(dimension: Dimension) -> Any:
    distributions, within = optuna_module().distributions, dimension.range
    if within is None:
        return distributions.CategoricalDistribution(dimension.choices)
    if dimension.whole:
        return distributions.IntDistribution(int(within.low), int(within.high), log=within.log)
    return distributions.FloatDistribution(within.low, within.high, log=within.log)


def _told(trial: Trial, space: Space, where: dict[str, Any]) -> Any:
    optuna = optuna_module().trial
    params = {d.key: _inside(d, trial.settings[d.key]) for d in space}
    create = partial(optuna.create_trial, params=params, distributions=where)
    if trial.value is not None and trial.state == "done":
        return create(value=trial.value)
    seen = {} if trial.value is None else {trial.round: trial.value}
    return create(state=optuna.TrialState.PRUNED, intermediate_values=seen)


def _inside(dimension: Dimension, value: Scalar) -> Scalar:
    """Returns a value where the search allows it: a default may lie elsewhere."""
    within = dimension.range
    if within is None:
        return value if value in dimension.choices else dimension.choices[0]
    return min(max(value, type(value)(within.low)), type(value)(within.high))


def _readable(dimension: Dimension, value: Scalar) -> Scalar:
    """Rounds to four digits, so that a file of settings is read easily."""
    return _inside(dimension, float(f"{value:.4g}")) if isinstance(value, float) else value
