"""The privacy that a run's settings promise, in words, before it starts."""

from typing import Final

from engram.guards.aggregation import spent
from engram.guards.calibration import looks, noise_multiplier, reach, sampling_rate
from engram.settings.experiment import Experiment

_MOST: Final = 10.0
"""Largest epsilon that protects to a reasonable degree: tier 2 of Ponomareva et al., JAIR 2023."""

_SAMPLING: Final = {
    "poisson": "Poisson sampling",
    "without-replacement": "sampling without replacement",
}


def adjacency(e: Experiment) -> str:
    """Returns in words which pairs of federations a private run makes hard to tell apart."""
    if e.privacy == "example" and e.own.turns:
        return "one of a client's turns is replaced by any other"
    if e.privacy == "example":
        return "one of a client's training rows is zeroed out (zero-out adjacency)"
    if reach(e) == 2:
        return "one client's data are replaced by any others"
    return "one client is added or removed"


def guarantee(e: Experiment) -> str:
    """Returns the largest epsilon that the run can spend, and what that means; "" without privacy.

    Unless cohorts are secret, it is that of a client that is asked in every round.
    """
    if e.privacy == "none":
        return ""
    noise = f"noise-multiplier {noise_multiplier(e):g}{' (for epsilon)' if e.epsilon else ''}"
    bound = f"clip {e.clip:g}{' at first' if e.clip_quantile else ''}"
    if not _is_known(e):
        return (
            f"{e.privacy} privacy by {noise} and {bound}, where {adjacency(e)}: epsilon "
            "follows from each client's number of rows, and the results have the largest one; "
            "training losses are not computed, and scores are not covered"
        )
    told = (
        f"{e.privacy} privacy by {noise} and {bound}: "
        f"epsilon at most {spent(e, looks(e)):.4g} at delta {e.delta:g} after {e.rounds} rounds, "
        f"where {adjacency(e)}"
    )
    if e.secret_cohorts:
        told += (
            f", amplified by {_SAMPLING[e.sampling]} at rate {sampling_rate(e):.4g} against "
            "whoever sees the models, and not who takes part"
        )
    if e.privacy == "local":
        each = ", and each evaluation by sites costs as much as a round"
        told += ", sites' scores included" if e.epsilon else each
    elif e.validates:
        told += "; scores, and a round chosen by them, are not covered"
    if not is_weak(e):
        return told
    mended = "lower epsilon" if e.epsilon else "raise noise-multiplier, or ask for fewer rounds"
    return f"{told}; above 10, which protects hardly anybody: {mended}"


def is_weak(e: Experiment) -> bool:
    """Whether a run has privacy by name only: its epsilon may be above 10."""
    return e.privacy != "none" and _is_known(e) and spent(e, looks(e)) > _MOST


def _is_known(e: Experiment) -> bool:
    """Whether epsilon follows from the settings alone, and not from clients' rows, too."""
    return e.privacy != "example" or "batch_size" in e.own.unread
