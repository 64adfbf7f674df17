"""The bandit policy that the settings describe, for sites and server alike."""

import torch

from engram.bandits.meta_ban import MetaBan, meta_ban
from engram.molar.bandits.policies import MultitaskBandit, molar_bandit
from engram.molar.shrinkage import Shared
from engram.molar.site import SiteEstimate
from federation.experiment import Experiment

__all__ = ["meta_ban_of", "parameters_of", "policy_of"]


def policy_of(experiment: Experiment) -> MultitaskBandit[SiteEstimate, Shared]:
    """Returns MOLARB with the experiment's constants."""
    e = experiment
    return molar_bandit(
        c=e.threshold_scale,
        option=e.thresholding,
        history=e.history,
        max_weight=e.max_weight,
    )


def parameters_of(experiment: Experiment) -> int:
    """Returns how many parameters a site has: 1 under Model-C, K under Model-P."""
    return 1 if experiment.bandit_model == "C" else experiment.arms


def meta_ban_of(experiment: Experiment, dim: int) -> MetaBan:
    """Returns Meta-Ban with the experiment's constants, for arms with so many features.

    In double precision: sums over sites round otherwise than those in one place, and a bandit that
    once chooses otherwise goes another way.
    """
    e = experiment
    return meta_ban(
        dim,
        hidden=e.hidden_widths,
        alpha=e.alpha,
        nu=e.nu,
        gamma=e.gamma,
        eta_user=e.user_eta,
        eta_meta=e.meta_eta,
        own_weight=e.own_weight,
        user_steps=e.user_steps,
        meta_steps=e.meta_steps,
        batch=e.replay_batch,
        buffer=e.replay_rows,
        dtype=torch.float64,
    )
