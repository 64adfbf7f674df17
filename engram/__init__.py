"""Personalized federated learning: every client gets its own model, and remembers it.

``engram.simulate`` runs an experiment on data in memory; ``engram.load_run`` opens one that was
run. The families' own learners stand in ``engram.molar``, ``engram.online``, ``engram.bandits``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engram.lazy import attach
from engram.rooms import check_rooms

if TYPE_CHECKING:
    from pydantic import Field

    from engram.augmentations import augmentation
    from engram.derivatives import gradient
    from engram.metrics import metric
    from engram.networks import model
    from engram.tasks import loss
    from engram.types import LocalRule
    from federation.data.datasets import data
    from federation.experiment import Experiment
    from federation.exported import load_model
    from federation.methods.base import method
    from federation.methods.local import LocalMethod
    from federation.settings.fields import searched
    from simulations.apps import make_client_app, make_server_app
    from simulations.front import Comparison, Run, compare, load_run, methods, simulate
    from simulations.tuning.front import Tuned, tune

__all__ = [
    "Comparison",
    "Experiment",
    "Field",
    "LocalMethod",
    "LocalRule",
    "Run",
    "Tuned",
    "augmentation",
    "compare",
    "data",
    "gradient",
    "load_model",
    "load_run",
    "loss",
    "make_client_app",
    "make_server_app",
    "method",
    "methods",
    "metric",
    "model",
    "searched",
    "simulate",
    "tune",
]

_get, __dir__ = attach(
    __name__,
    {
        "Comparison": "simulations.front",
        "Experiment": "federation.experiment",
        "Field": "pydantic",
        "LocalMethod": "federation.methods.local",
        "LocalRule": "engram.types",
        "Run": "simulations.front",
        "Tuned": "simulations.tuning.front",
        "augmentation": "engram.augmentations",
        "compare": "simulations.front",
        "data": "federation.data.datasets",
        "gradient": "engram.derivatives",
        "load_model": "federation.exported",
        "load_run": "simulations.front",
        "method": "federation.methods.base",
        "methods": "simulations.front",
        "loss": "engram.tasks",
        "make_client_app": "simulations.apps",
        "make_server_app": "simulations.apps",
        "metric": "engram.metrics",
        "model": "engram.networks",
        "searched": "federation.settings.fields",
        "simulate": "simulations.front",
        "tune": "simulations.tuning.front",
    },
)


def __getattr__(name: str) -> Any:
    check_rooms()
    import_module("federation.plugins").load_plugins()
    return _get(name)
