"""Everything that plug-ins may add to, and what takes it away again."""

import sys
from contextlib import contextmanager
from pathlib import Path

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
from engram.settings.plugins import VARIABLE, plugins
from engram.strategies.running.base import STRATEGIES

REGISTRIES = (METHODS, SCIENCE, METRICS, NETWORKS, LOSSES, AUGMENTATIONS, DATASETS)
FAMILIES = (HOSTS, STRATEGIES, REPORTS, MODELS)
REGISTRIES += (OPTIMIZERS, SCHEDULES, GUARDS, *FAMILIES)


def load_families() -> None:
    """Imports every family's files, each of which registers its family once."""
    for known in FAMILIES:
        assert all(known[method.plug_in] for method in METHODS.values())


@contextmanager
def forgotten(monkeypatch):
    """Forgets in the end what plug-ins have registered meanwhile, and that there were any."""
    load_families()
    before = [dict(known) for known in REGISTRIES]
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    packages = {Path(plugin).name.partition(".")[0] for plugin in plugins()}
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]
    ours = {n: each for n, each in SCIENCE.items() if each.__module__.startswith("engram.methods.")}
    for known, names in zip(REGISTRIES, before, strict=True):
        known.clear()
        known.update(names)
    SCIENCE.update(ours)  # a method's module registers it once, when it is first used
