"""The privacy that a run's settings promise, in words, before it starts."""

from typing import Final

from federation.aggregation import spent
from federation.experiment import Experiment

__all__ = ["guarantee", "is_weak"]

_MOST: Final = 10.0
"""Largest epsilon that protects to a reasonable degree: tier 2 of Ponomareva et al., JAIR 2023."""


def guarantee(e: Experiment) -> str:
    """Returns the largest epsilon that the run can spend, and what that means; "" without privacy.

    It is that of a client that is asked in every round.
    """
    if e.privacy == "none":
        return ""
    told = (
        f"{e.privacy} privacy by noise-multiplier {e.noise_multiplier:g} and clip {e.clip:g}: "
        f"epsilon at most {spent(e, e.rounds):.4g} at delta {e.delta:g} after {e.rounds} rounds"
    )
    if e.privacy == "local":
        told += ", and each evaluation by sites costs as much as a round"
    weak = (
        ", above 10, which protects hardly anybody: raise noise-multiplier, or ask for fewer rounds"
    )
    return told + weak if is_weak(e) else told


def is_weak(e: Experiment) -> bool:
    """Whether a run has privacy by name only: its epsilon may be above 10."""
    return e.privacy != "none" and spent(e, e.rounds) > _MOST
