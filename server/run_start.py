"""The beginning of a run: its strategy, and the state of a former run."""

from pathlib import Path

from engram.core.checks import must
from engram.core.types import Params
from engram.guards.calibration import multiplier_of
from engram.guards.noise import Noise
from engram.runs.run import Run
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.strategies.running.base import STRATEGIES, RunStrategy
from engram.wire.roster import Roster


def former_run(experiment: Experiment) -> Run:
    """Opens the run that another starts from.

    Raises:
        Refused: There is none, or it has no checkpoint.
    """
    record = Run.open(Path(experiment.start_from))
    if not record.checkpoints():
        raise Refused(must("start-from", record.folder, "a run that has a checkpoint"))
    return record


def first_arrays(strategy: RunStrategy, former: Run | None) -> Params:
    """Initializes a strategy, from a former run if there is one; returns its first arrays.

    Raises:
        Refused: The former run's models are others.
    """
    model = strategy.init()
    last = former and former.load_checkpoint()
    return strategy.start_from(last.model, last.state) if last else model


def strategy_of(experiment: Experiment, roster: Roster, noise: Noise) -> RunStrategy:
    """Builds the strategy of a run for the clients of a roster, who may have come in its course.

    A run that asks all of its clients goes on to ask all.

    Raises:
        Refused: The settings do not fit the clients' data.
    """
    e, clients = experiment, len(roster.nodes)
    if clients != e.num_clients:
        asked = clients if e.clients_per_round == e.num_clients else e.clients_per_round
        asked = min(asked, clients)
        # The noise stays what the accountant counts with: more clients would ask for less of it.
        noised = {"epsilon": 0.0, "noise_multiplier": multiplier_of(e)} if e.epsilon else {}
        changed = {"num_clients": clients, "clients_per_round": asked, **noised}
        e = e.model_copy(update=changed)
    return STRATEGIES[e.own.plug_in].build(e, roster, noise)
