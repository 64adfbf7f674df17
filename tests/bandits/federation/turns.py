"""Sites of Meta-Ban whose turns are played, and the same in one place."""

from contextlib import contextmanager

import pytest

from engram.bandits.federation.bandit_turns import drawn_environment
from engram.bandits.federation.policy import policy_of
from engram.bandits.play import play_policy as play_in_one_place
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.guards.noise import simulated_noise
from engram.runs.run import Run
from engram.server.engine import Engine
from engram.server.run import run as run_on
from engram.simulations.grid import InProcessGrid
from engram.wire.wire import CLIENTS
from tests.support import small

COUNT, T = 6, 32
DISCREET = 8  # the default of report-every


def settings(**special):
    base = {"method": "meta-ban", "dataset": "linear-groups", "num_clients": COUNT}
    quick = {"hidden": "6,5", "replay_batch": 4, "replay_rows": 6, "meta_steps": 2}
    return small(**base | quick | {"num_rounds": T, "timeout": 1.0} | special)


def run(folder, *, settings=settings, grid=None, store=None, nodes=COUNT, **special):
    """Runs sites in this process; returns the results, and what the sites remember."""
    e, store = settings(**special), store or RamStore()
    hosts = [range(node, e.num_clients, nodes) for node in range(nodes)]
    host = host_of(Opening(e, store, noise=simulated_noise(e.seed)))
    g = (grid or InProcessGrid)(host, hosts)
    ram = store if isinstance(store, RamStore) else None
    return run_on(g, e, folder, engine="vectorized", memories=ram), store


def in_one_place(**special):
    """Plays the library's policy, and returns what it played, and its state in the end."""
    e, environment = settings(**special), drawn_environment(settings(**special))
    moments = []
    played = play_in_one_place(
        policy_of(e, environment.dim).batched, [environment], [e.seed], moments.append
    )
    return environment, played, moments[-1]


@contextmanager
def killed_at(number):
    """Kills the run inside as it begins so many trainings; yields those that it has begun."""
    train, calls = Engine.train, []

    def dies(*args, **options):
        calls.append(args)
        if len(calls) == number:
            raise KeyboardInterrupt
        return train(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "train", dies)
        with pytest.raises(KeyboardInterrupt):
            yield calls


def entry(key, value):
    """Returns a change of an entry of a reply about clients."""

    def change(reply):
        reply.content[CLIENTS][key] = value
        return reply

    return change


def rows_of(folder):
    return Run.open(folder).rows()
