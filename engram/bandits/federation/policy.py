"""The policy of Meta-Ban, by its settings."""

from itertools import pairwise

import torch

from engram.bandits.federation.meta_ban import MetaBan
from engram.bandits.meta_ban import MetaBan as Policy
from engram.bandits.meta_ban import meta_ban
from engram.core.machine import check_room
from engram.settings.experiment import Experiment


def policy_of(experiment: Experiment, dim: int, clients: int = 0) -> Policy:
    """Builds the policy of sites and server, for arms with so many features.

    In double precision: sums over sites round otherwise than those in one place, and a bandit
    that once chooses otherwise goes another way.
    ``clients`` is the number of those whose networks are in this process.

    Raises:
        Refused: The networks do not fit into memory.
    """
    own, hidden = experiment.of(MetaBan), experiment.hidden_widths
    size = 8 * sum(a * b for a, b in pairwise((dim, *hidden, 1)))
    # Theta_0, its gradient, and the next; of each client what chooses, and what it trains.
    check_room(own.name, (3 + 2 * clients) * size, "lower hidden, or have fewer clients")
    return meta_ban(
        dim,
        hidden=hidden,
        alpha=own.alpha,
        nu=own.nu,
        gamma=own.gamma,
        eta_user=own.user_eta,
        eta_meta=own.meta_eta,
        group_cap=own.group_cap or None,
        own_weight=own.own_weight,
        user_steps=own.user_steps,
        meta_steps=own.meta_steps,
        batch=own.replay_batch,
        buffer=own.replay_rows,
        dtype=torch.float64,
    )
