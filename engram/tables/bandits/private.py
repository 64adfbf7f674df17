"""A task of MOLARB that learns from sums with noise, which hide each of its turns.

At the end of a batch the task computes the noisy statistics of ``engram.tables.private`` from its
new rows, and forgets these. What it sends follows from the noisy statistics, and so do its
coefficients and all later choices, together with what the server sends. So a turn (its contexts,
and the rewards of its arms) is in one release, however many batches follow. Another turn in its
place moves the sums by ``|z z' - v v'| <= sqrt(2) R^2`` at most, in the Frobenius norm, since
``|z|, |v| <= R`` and ``<z z', v v'> >= 0``. Other turns must not depend on it but by the arms that
are played.

It is for Model-C: under Model-P, how many rows an arm has would tell which one a context chose.
"""

from typing import Any

import numpy as np

from engram.core.arrays import Array
from engram.tables.bandits.site import TaskBandit, TaskState
from engram.tables.private import estimate_of, noisy_statistics
from engram.tables.shrinkage import Option, Shared, personalize
from engram.tables.site import SiteEstimate

__all__ = ["close_batch", "receive"]


def close_batch(
    task: TaskBandit[Any, Any],
    state: TaskState,
    *,
    bound: float,
    multiplier: float,
    normal: Array,
) -> tuple[SiteEstimate | None, TaskState]:
    """Ends a batch.

    Args:
        task: The policy, which says how many rows are enough.
        state: The state after the batch, with one parameter.
        bound: R, see ``noisy_statistics``, also for what follows.
        multiplier: The noise multiplier.
        normal: Standard normal numbers.

    Returns:
        The estimate from the new rows, with noise, and the state without these; or None, and the
        same state, where there are too few.
    """
    (enough,) = task.enough(state)
    if not enough:
        return None, state
    rows = state.fresh.of(0)
    noisy = noisy_statistics(rows, bound=bound, multiplier=multiplier, normal=normal)
    none = np.zeros(len(rows.y), dtype=bool)
    estimate = estimate_of(noisy, len(rows.y), multiplier * bound**2)
    return estimate, state._replace(fresh=state.fresh.select(none))


def receive(
    state: TaskState, sent: SiteEstimate, shared: Shared, *, option: Option, c: float
) -> TaskState:
    """Computes new coefficients from what was sent and what is shared; see ``personalize``."""
    return state._replace(coefs=personalize(sent, shared, option=option, c=c)[None])
