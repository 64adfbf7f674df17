"""Members that come and go in runs of MOLAR and of its bandit, compared with the pure exchange."""

import numpy as np
import pytest

from engram.bandits.federation.environments import simulated_environment
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.core.streams import Stream, generator
from engram.data.tables.tables import table_data
from engram.runs.run import Run
from engram.server.run import run as run_on
from engram.simulations.engine import simulate
from engram.simulations.replayed_participation import Participation, ReplayedGrid
from engram.tables.bandits.policies import batches, exchange
from engram.tables.exchange import answer, personal, tell
from engram.tables.federation.bandit_host import policy_of
from engram.tables.heterogeneity import REACH
from tests.server.members import CLIENTS, SCRIPT
from tests.support import small

ROUNDS = 5
CALL = {"family": "logistic", "reach": REACH}
SPECIAL = {
    "molar": {
        "sharing": "adaptive",
        "family": "logistic",
        "dataset": "sparse-logistic",
        "exchanges": ROUNDS,
    },
    "molar-bandit": {"num_rounds": ROUNDS, "first_batch": 40, "report_every": 1},
    "meta-ban": {"num_rounds": ROUNDS, "dataset": "linear-groups"},
}


def settings(method, **change):
    base = {"method": method, "dataset": "sparse-linear", "num_clients": CLIENTS, "timeout": 1.0}
    return small(**base | SPECIAL[method] | change)


def scripted(method, folder):
    """Runs it with clients that come and go; returns its results, and the clients' memories."""
    e, store = settings(method), RamStore()
    members, cohorts = ({n: frozenset(SCRIPT[n][i]) for n in SCRIPT} for i in (0, 1))
    grid = ReplayedGrid(
        host_of(Opening(e, store)), CLIENTS, Participation(3, members, cohorts, None), None
    )
    found = run_on(grid, e, folder, engine="vectorized", memories=store)
    return found, {client: store.load(client, before=99) for client in range(CLIENTS)}


def exchanged():
    """MOLAR's exchanges of the library among those that are there: what it shares and they keep."""
    e, told = settings("molar"), None
    rows = [rows.with_ones() for rows in table_data(e).train]
    for number in range(1, ROUNDS + 1):
        there = sorted(SCRIPT[number][1])
        each = [tell(rows[client], told, **CALL) for client in there]
        found = answer(each, told, **CALL, max_weight=e.max_weight)
        told = found.told
    return found, [personal(each, told, **CALL) for each in rows]


def test_sites_of_molar_come_and_go(tmp_path):
    found, kept = scripted("molar", tmp_path / "run")
    last, own = exchanged()
    np.testing.assert_allclose(found["shared"]["coef"], last.coef, rtol=1e-9, atol=1e-12)
    for client in SCRIPT[ROUNDS][0]:
        coef = [float(leaf[0]) for leaf in kept[client].values()]
        np.testing.assert_allclose(coef, own[client], rtol=1e-9, atol=1e-12)
    assert found["clients"]["ids"] == [0, 2, 3]


def played():
    """MOLARB of the library among those that are there: coefficients, and turns, of each site."""
    e = settings("molar-bandit")
    site, shared, turns = policy_of(e), None, np.zeros(CLIENTS)
    worlds = [simulated_environment(e, client) for client in range(CLIENTS)]
    state = [site.init(e.own.parameters, world.contexts.shape[2]) for world in worlds]
    for number, batch in enumerate(batches(e.own.first_batch, e.own.horizon(e)), start=1):
        sent = []
        for client in sorted(SCRIPT[number][1]):
            one = state[client] if shared is None else site.receive(state[client], shared)
            now = worlds[client].rounds(batch.start, batch.stop)
            ties = generator(e.seed, Stream.TIES, number, client)
            chosen = site.choose(one, now.contexts, ties)
            rewards = now.rewards[np.arange(len(chosen)), chosen]
            state[client] = site.observe(one, now.contexts, chosen, rewards)
            sent.append(site.close_batch(state[client]))
            turns[client] += len(chosen)
        each = exchange(site.method, sent)
        parameters = range(e.own.parameters)
        shared = [next((own[p] for own in each if own[p] is not None), None) for p in parameters]
    return [site.receive(one, shared).coefs for one in state], turns


def test_sites_of_a_bandit_come_and_go(tmp_path):
    found, kept = scripted("molar-bandit", tmp_path / "run")
    coefs, turns = played()
    for client in SCRIPT[ROUNDS][0]:
        np.testing.assert_allclose(kept[client]["coefs"].numpy(), coefs[client], rtol=1e-9)
    assert found["clients"]["turns"] == turns.tolist()
    assert (turns > 0).all()
    assert len({tuple(each.ravel()) for each in coefs}) == CLIENTS


@pytest.mark.parametrize("method", SPECIAL)
def test_it_is_replayed_with_and_without_a_client(tmp_path, method):
    scripted(method, tmp_path / "there")
    there = Run.open(tmp_path / "there")
    repeated = {"participation": str(tmp_path / "there")}
    simulate(settings(method, **repeated), tmp_path / "here")
    here = Run.open(tmp_path / "here")
    same_in_the_end(here, there)
    assert [row["members"] for row in here.rows()] == [row["members"] for row in there.rows()]
    simulate(settings(method, **repeated, without="3"), tmp_path / "without")
    without = Run.open(tmp_path / "without")
    assert [set(row["members"]) for row in without.rows()] == [
        SCRIPT[row["round"]][0] - {3} for row in there.rows()
    ]
    assert [set(row["cohort"]) - {*map(int, row["absent"])} for row in without.rows()] == [
        SCRIPT[row["round"]][1] - {3} for row in there.rows()
    ]


def same_in_the_end(one, other):
    one, other = one.load_checkpoint(), other.load_checkpoint()
    for part in ("model", "state"):
        assert getattr(one, part).keys() == getattr(other, part).keys()
        for name, leaf in getattr(one, part).items():
            wanted = getattr(other, part)[name].numpy()
            np.testing.assert_allclose(leaf.numpy(), wanted, rtol=1e-9, atol=1e-12)
