"""How often inferred relative groups are the true ones (Lemma 6.4)."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engram.bandits.policy import Array
from engram.checks import require

__all__ = ["Recovery", "group_recovery", "true_groups"]

Flags = npt.NDArray[np.bool_]


class Recovery(NamedTuple):
    """What is right about inferred groups.

    Attributes:
        exact: Whether each is the true one.
        precision: Share of those in it who belong there.
        recall: Share of those who belong there who are in it.
    """

    exact: Flags
    precision: Array
    recall: Array


def true_groups(expected_rewards: Array, user: int, tolerance: float = 0.0) -> Flags:
    """Returns who expects of each arm what a user does (Definition 3.1), shape (K, users).

    Args:
        expected_rewards: Expected rewards, shape (K, users); of a round in ``play``, and of those whom run
            r has seen, numbered as it numbers them: ``world.expected_rewards(t)[:, moment.came[r]]``.
        user: Whose relative groups; the number in ``expected_rewards``.
        tolerance: How far they may differ, >= 0; 0 is the definition.
    """
    require(tolerance >= 0, "tolerance", tolerance, "at least 0")
    found: Flags = np.abs(expected_rewards - expected_rewards[:, user, None]) <= tolerance
    return found


def group_recovery(inferred: Flags, true: Flags) -> Recovery:
    """Returns how inferred groups agree with the true ones, each of shape (...).

    Args:
        inferred: Who is in each, shape (..., users); of those whom the policy has seen. A group
            without anyone has precision 1.
        true: Who belongs there, likewise; at least the user whose group it is.
    """
    require(inferred.shape == true.shape, "the groups' shapes", inferred.shape, f"{true.shape}")
    own = true.sum(axis=-1)
    require(bool((own >= 1).all()), "a true group", "nobody", "of one user at least")
    both, found = (inferred & true).sum(axis=-1), inferred.sum(axis=-1)
    precision = np.where(found > 0, both / np.maximum(found, 1), 1.0)
    return Recovery((inferred == true).all(axis=-1), precision, both / own)
