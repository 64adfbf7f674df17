"""Personalized federated learning: every client gets its own model, and remembers it.

``engram.simulate`` runs an experiment on data in memory; ``engram.load_run`` opens one that was
run. The families' own learners stand in ``engram.molar``, ``engram.online``, ``engram.bandits``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engram.lazy import attach
from engram.rooms import check_rooms

if TYPE_CHECKING:
    from engram.augmentations import augmentation
    from engram.metrics import metric
    from engram.networks import model
    from engram.tasks import loss
    from federation.experiment import Experiment
    from simulations.front import Comparison, Run, compare, load_run, methods, simulate

__all__ = [
    "Comparison",
    "Experiment",
    "Run",
    "augmentation",
    "compare",
    "load_run",
    "loss",
    "methods",
    "metric",
    "model",
    "simulate",
]

_get, __dir__ = attach(
    __name__,
    {
        "Comparison": "simulations.front",
        "Experiment": "federation.experiment",
        "Run": "simulations.front",
        "augmentation": "engram.augmentations",
        "compare": "simulations.front",
        "load_run": "simulations.front",
        "methods": "simulations.front",
        "loss": "engram.tasks",
        "metric": "engram.metrics",
        "model": "engram.networks",
        "simulate": "simulations.front",
    },
)


def __getattr__(name: str) -> Any:
    check_rooms()
    import_module("federation.plugins").load_plugins()
    return _get(name)
