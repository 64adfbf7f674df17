"""Frequency with which inferred relative groups equal the true ones (Lemma 6.4)."""

from typing import NamedTuple

import numpy as np

from engram.core.arrays import Array, Bools
from engram.core.checks import require


class Recovery(NamedTuple):
    """Agreement of inferred groups with the true ones."""

    exact: Bools  # whether each inferred group equals the true one
    precision: Array  # share of its users who belong to the true group
    recall: Array  # share of the true group's users who are in it


def true_groups(expected_rewards: Array, user: int, tolerance: float = 0.0) -> Bools:
    """Returns which users expect the same of each arm as a user (Definition 3.1), shape (K, users).

    Args:
        expected_rewards: Expected rewards, shape (K, users). For the users whom run r of
            ``play_policy`` has seen in round t, numbered as the run numbers them, it is
            ``environment.expected_rewards(t)[:, context.came[r]]``.
        user: The user whose relative groups are wanted, a column of ``expected_rewards``.
        tolerance: Largest difference that counts as agreement, >= 0; 0 is the definition.
    """
    require(tolerance >= 0, "tolerance", tolerance, "at least 0")
    return np.abs(expected_rewards - expected_rewards[:, user, None]) <= tolerance


def group_recovery(inferred: Bools, true: Bools) -> Recovery:
    """Compares inferred groups with the true ones; results have shape (...).

    Args:
        inferred: Members of each group among the users seen, shape (..., users). An empty group has
            precision 1.
        true: The true members, in the same shape; at least the user whose group it is.
    """
    require(inferred.shape == true.shape, "the groups' shapes", inferred.shape, f"{true.shape}")
    own = true.sum(axis=-1)
    require(bool((own >= 1).all()), "a true group", "nobody", "of one user at least")
    both, found = (inferred & true).sum(axis=-1), inferred.sum(axis=-1)
    precision = np.where(found > 0, both / np.maximum(found, 1), 1.0)
    return Recovery((inferred == true).all(axis=-1), precision, both / own)
