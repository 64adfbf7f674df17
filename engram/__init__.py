"""Personalized federated learning: every client gets its own model, and remembers it.

``engram.simulate`` runs an experiment on data in memory; ``engram.load_run`` opens one that was
run. The families' own learners stand in ``engram.molar``, ``engram.online``, ``engram.bandits``.
"""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from federation.experiment import Experiment
    from simulations.front import Run, load_run, methods, simulate

__all__ = [
    "Experiment",
    "Run",
    "load_run",
    "methods",
    "simulate",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Experiment": "federation.experiment",
        "Run": "simulations.front",
        "load_run": "simulations.front",
        "methods": "simulations.front",
        "simulate": "simulations.front",
    },
)
