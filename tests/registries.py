"""Everything that plug-ins may add to, for the fixture that takes it away again."""

from client.hosts import HOSTS
from engram.augmentations import AUGMENTATIONS
from engram.core.settings import METHODS as SCIENCE
from engram.metrics import METRICS
from engram.networks import NETWORKS
from engram.steps import OPTIMIZERS, SCHEDULES
from engram.tasks import LOSSES
from federation.data.source import DATASETS
from federation.methods import METHODS
from simulations.reports import PLOTS, REPORTS
from strategies import STRATEGIES

REGISTRIES = (METHODS, SCIENCE, METRICS, NETWORKS, LOSSES, AUGMENTATIONS, DATASETS)
REGISTRIES += (OPTIMIZERS, SCHEDULES)
REGISTRIES += (HOSTS, STRATEGIES, REPORTS, PLOTS)


def load_families() -> None:
    """Imports every family's files, each of which registers its family once."""
    for known in (HOSTS, STRATEGIES, REPORTS):
        assert all(known[method.plug_in] for method in METHODS.values())
