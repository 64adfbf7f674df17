"""Personalized federated learning: every client gets its own model, and remembers it.

``engram.simulate`` runs an experiment on data in memory; ``engram.load_run`` opens one that was
run. ``engram.method`` registers a method of your own, whose parts stand in ``engram.core``. The
other families' learners stand in ``engram.molar``, ``engram.online`` and ``engram.bandits``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engram.lazy import attach
from engram.process import own_modes

if TYPE_CHECKING:
    from engram.augmentations import augmentation as augmentation
    from engram.metrics import metric as metric
    from engram.networks import model as model
    from engram.steps import optimizer as optimizer
    from engram.steps import schedule as schedule
    from engram.tasks import loss as loss
    from federation.data.source import data as data
    from federation.experiment import Experiment as Experiment
    from federation.exported import load_model as load_model
    from federation.methods.network import method as method
    from simulations.apps import make_client_app as make_client_app
    from simulations.apps import make_server_app as make_server_app
    from simulations.auditing.front import audit as audit
    from simulations.compared import Comparison as Comparison
    from simulations.compared import compare as compare
    from simulations.compared import load_comparison as load_comparison
    from simulations.front import Run as Run
    from simulations.front import load_run as load_run
    from simulations.front import methods as methods
    from simulations.front import simulate as simulate
    from simulations.ranks import ranks as ranks
    from simulations.tuning.front import Tuned as Tuned
    from simulations.tuning.front import tune as tune

_get, __dir__, __all__ = attach(__name__, __file__)


def __getattr__(name: str) -> Any:
    import_module("engram.rooms").check_rooms()
    with own_modes():
        plug_ins = import_module("federation.plugins")
        if name in ("LocalMethod", "LocalRule", "NetworkMethod"):
            words = f"engram.{name} must be replaced by engram.method: {plug_ins.MOVING}"
            raise ImportError(words, name=__name__)
        plug_ins.load_plugins()
        return _get(name)
