"""Everything that plug-ins may add to, for the fixture that takes it away again."""

from engram.client.hosts import HOSTS
from engram.compare.reports.base import REPORTS
from engram.core.settings import METHODS as SCIENCE
from engram.data.augmentations import AUGMENTATIONS
from engram.data.source import DATASETS
from engram.guards.registry import GUARDS
from engram.home.learned import MODELS
from engram.networks.optimizers import OPTIMIZERS, SCHEDULES
from engram.networks.registry import NETWORKS
from engram.scoring.metrics import METRICS
from engram.scoring.tasks import LOSSES
from engram.settings.families import METHODS
from engram.strategies.running.base import STRATEGIES

REGISTRIES = (METHODS, SCIENCE, METRICS, NETWORKS, LOSSES, AUGMENTATIONS, DATASETS)
FAMILIES = (HOSTS, STRATEGIES, REPORTS, MODELS)
REGISTRIES += (OPTIMIZERS, SCHEDULES, GUARDS, *FAMILIES)


def load_families() -> None:
    """Imports every family's files, each of which registers its family once."""
    for known in FAMILIES:
        assert all(known[method.plug_in] for method in METHODS.values())
