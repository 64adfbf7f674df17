"""The policy of a bandit between sites, by its settings."""

from engram.settings.experiment import Experiment
from engram.tables.bandits.policies import molar_bandit
from engram.tables.bandits.site import TaskBandit
from engram.tables.federation.molar import MolarBandit
from engram.tables.shrinkage import Shared
from engram.tables.site import SiteEstimate


def policy_of(experiment: Experiment) -> TaskBandit[SiteEstimate, Shared]:
    """Builds the policy of sites and server."""
    own = experiment.of(MolarBandit)
    return molar_bandit(
        c=own.threshold_scale,
        option=own.thresholding,
        history=own.history,
        max_weight=experiment.max_weight,
    )
