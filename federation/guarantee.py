"""The privacy that a run's settings promise, in words, before it starts."""

from typing import Final

from federation.aggregation import spent
from federation.calibration import noise_multiplier, sampling_rate
from federation.experiment import Experiment

__all__ = ["ADJACENCY", "guarantee", "is_weak"]

ADJACENCY: Final = {
    "central": "one client is added or removed",
    "local": "one client's data are replaced by any others",
}
"""Pairs of federations that privacy makes hard to tell apart, by the setting ``privacy``."""

_MOST: Final = 10.0
"""Largest epsilon that protects to a reasonable degree: tier 2 of Ponomareva et al., JAIR 2023."""


def guarantee(e: Experiment) -> str:
    """Returns the largest epsilon that the run can spend, and what that means; "" without privacy.

    Without Poisson sampling it is that of a client that is asked in every round.
    """
    if e.privacy == "none":
        return ""
    sampled = e.sampling == "poisson"
    noise = f"noise-multiplier {noise_multiplier(e):g}{' (for epsilon)' if e.epsilon else ''}"
    bound = f"clip {e.clip:g}{' at first' if e.clip_quantile else ''}"
    told = (
        f"{e.privacy} privacy by {noise} and {bound}: "
        f"epsilon at most {spent(e, e.rounds):.4g} at delta {e.delta:g} after {e.rounds} rounds, "
        f"where {ADJACENCY[e.privacy]}"
    )
    if sampled:
        told += (
            f", amplified by Poisson sampling at rate {sampling_rate(e):.4g} against whoever sees "
            "the models, and not who takes part"
        )
    if e.privacy == "local":
        told += ", and each evaluation by sites costs as much as a round"
    elif e.validates:
        told += "; scores, and a round chosen by them, are not covered"
    weak = (
        "; above 10, which protects hardly anybody: raise noise-multiplier, or ask for fewer rounds"
    )
    return told + weak if is_weak(e) else told


def is_weak(e: Experiment) -> bool:
    """Whether a run has privacy by name only: its epsilon may be above 10."""
    return e.privacy != "none" and spent(e, e.rounds) > _MOST
