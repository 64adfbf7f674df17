"""The privacy that a run's settings promise, in words."""

from typing import Final

from engram.guards.accounting import composition
from engram.guards.accounting.releases import hidden_by
from engram.guards.calibration import noise_multiplier, plan_of
from engram.guards.presets import protections
from engram.settings.experiment import Experiment

_MOST: Final = 10.0
"""Largest epsilon that protects to a reasonable degree: tier 2 of Ponomareva et al., JAIR 2023."""

_SAMPLING: Final = {"added": "Poisson sampling", "replaced": "sampling without replacement"}
_ANY_ROWS: Final = 2**53


def adjacency(e: Experiment) -> str:
    """Describes the adjacency of federations under a private run."""
    plan = plan_of(e)
    unit, neighbors = hidden_by(protections(e).releases(plan))
    if neighbors == "added":
        if unit == "client":
            return "one client is added or removed"
        return "one of a client's training rows is zeroed out (zero-out adjacency)"
    if unit == "client":
        return "one client's data are replaced by any others"
    rows = "turns" if plan.turns else "training rows"
    return f"one of a client's {rows} is replaced by any other"


def guarantee(e: Experiment) -> str:
    """Describes the largest epsilon of a run, and its meaning; "" without privacy.

    Unless cohorts are secret, it is that of a client that is asked in every round.
    """
    plan = plan_of(e)
    releases = protections(e).releases(plan)
    if not releases:
        return ""
    hidden, most = adjacency(e), _known(e)
    if most is None:
        return (
            f"{_noise_in_words(e)}, where {hidden}: epsilon follows from each client's number of "
            "rows, and the results have the largest one; training losses are not computed, and "
            "scores are not covered"
        )
    told = (
        f"{_noise_in_words(e)}: epsilon at most {most:.4g} at delta {e.delta:g} after {e.rounds} "
        f"rounds, where {hidden}"
    )
    if plan.secret:
        told += (
            f", amplified by {_SAMPLING[plan.neighbors]} at rate {plan.rate:.4g} against "
            "whoever sees the models, and not who takes part"
        )
    if any(release.each == "report" for release in releases):
        each = ", and each evaluation by sites costs as much as a round"
        told += ", sites' scores included" if e.epsilon else each
    elif e.validates:
        told += "; scores, and a round chosen by them, are not covered"
    if most <= _MOST:
        return told
    mended = "lower epsilon" if e.epsilon else "raise noise-multiplier, or ask for fewer rounds"
    return f"{told}; above 10, which protects hardly anybody: {mended}"


def spent(e: Experiment, answers: int, rows: int = 1) -> float:
    """Returns the epsilon, at ``delta``, of a client after a number of answers.

    Where cohorts are secret, these are all rounds that have begun; otherwise those in which the
    client was asked. Where single rows are hidden, it is that of a row of a client with so many.

    Raises:
        Refused: As ``noise_multiplier``, or dp-accounting is needed and not installed.
    """
    releases = protections(e).releases(plan_of(e, rows))
    return composition.epsilon_by_answers(releases, e.delta)(answers)


def is_weak(e: Experiment) -> bool:
    """Whether a run has privacy by name only: its epsilon may be above 10."""
    most = _known(e)
    return most is not None and most > _MOST


def _noise_in_words(e: Experiment) -> str:
    solved_for, first = " (for epsilon)" * (e.epsilon > 0), " at first" * (e.clip_quantile > 0)
    noise = f"noise-multiplier {noise_multiplier(e):g}{solved_for}"
    if e.privacy == "none":
        return f"privacy by {e.guards}" + f" of {noise}" * (e.epsilon > 0)
    return f"{e.privacy} privacy by {noise} and clip {e.clip:g}{first}"


def _known(e: Experiment) -> float | None:
    """Returns a run's largest epsilon; None if it follows from clients' rows, too; 0 of nothing."""
    guard, plan = protections(e), plan_of(e)
    if guard.releases(plan) != guard.releases(plan._replace(rows=_ANY_ROWS)):
        return None
    return composition.planned(guard.releases(plan), plan, e.delta)
