"""The bandit policy that the settings describe, for sites and server alike."""

from engram.molar.bandits.policies import MultitaskBandit, molar_bandit
from engram.molar.shrinkage import Shared
from engram.molar.site import SiteEstimate
from federation.experiment import Experiment

__all__ = ["parameters_of", "policy_of"]


def policy_of(experiment: Experiment) -> MultitaskBandit[SiteEstimate, Shared]:
    """Returns MOLARB with the experiment's constants."""
    e = experiment
    return molar_bandit(c=e.threshold_scale, option=e.thresholding, history=e.history)


def parameters_of(experiment: Experiment) -> int:
    """Returns how many parameters a site has: 1 under Model-C, K under Model-P."""
    return 1 if experiment.bandit_model == "C" else experiment.arms
