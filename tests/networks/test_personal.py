"""Parameters that are each client's own: they stay with it, under every method."""

import numpy as np
import pytest
import torch
from torch import nn

from engram.client.hosts.local import LocalHost
from engram.guards.noise import secret_noise
from engram.networks.registry import model
from engram.runs.run import Run
from engram.server.roster import query_roster
from engram.settings.errors import Refused
from engram.settings.families import family
from engram.simulations.engine import simulate
from engram.simulations.grid import InProcessGrid
from engram.strategies.running.network_strategy import Federated
from engram.wire.wire import ARRAYS
from tests.networks.networks import CASES, CLIENTS, PERSONAL
from tests.networks.test_modules import EVERYWHERE, experiment, kept_by
from tests.samples import EIGHT, entry, sampled
from tests.support import trainer

pytestmark = pytest.mark.usefixtures("plug_ins")

HEADS = {"convolutions": "5.*", "group norm": "head.*", "two inputs": "head.*,codes.*"}


def run(folder, case, engine="vectorized", **settings):
    found = simulate(experiment(case, **settings), folder, engine=engine)
    return found, Run.open(folder).load_checkpoint()


# FedPAC and Floco refuse; GPFL exchanges arrays of its own beside the network's.
METHODS = sorted({*family("local")} - {"fedpac", "floco", "gpfl"})
TABLE = [
    (case, method)
    for i, case in enumerate(HEADS)
    for j, method in enumerate(METHODS)
    if method in EVERYWHERE or (i + j) % 5 == 0
]
QUICK = [(case, method) for case, method in TABLE if method in EIGHT]


@pytest.mark.parametrize(("case", "method"), sampled(TABLE, QUICK))
def test_both_engines_compute_the_same_and_share_no_more_than_they_should(case, method, tmp_path):
    own = {"method": method, "memory": "carry", "personal": HEADS[case]}
    one, first = run(tmp_path / "one", case, **own)
    other, second = run(tmp_path / "other", case, engine="sequential", **own)
    torch.testing.assert_close(first.model, second.model, rtol=1e-5, atol=1e-5)
    assert one["clients"]["loss"] == pytest.approx(other["clients"]["loss"], abs=1e-5)
    make, _, _ = CASES[case]
    whole = {name for name, _ in make().named_parameters()}
    mine = {name for name in whole if any(name.startswith(p[:-1]) for p in HEADS[case].split(","))}
    assert 0 < len(mine) < len(whole)
    # Slots of models, and of differences; prototypes and the like are no parameters.
    kinds = trainer(experiment(case, **own)).method.kinds
    parts = [name.partition("/") for name in first.model]
    exchanged = {name for slot, _, name in parts if kinds[slot] != "statistic"}
    # pFedHN makes each client's model, and CFL's and FedFomo's are stacked.
    none = ("local", "pfedhn", "cfl", "fedfomo")
    assert len(exchanged) == len(whole - mine) or (not exchanged and method in none)


def test_nothing_personal_is_in_a_message():
    e = experiment("group norm", method="pfedme", personal="head.*", clip=1.0)
    t = trainer(e)
    grid = InProcessGrid(LocalHost(t), [[client] for client in range(CLIENTS)])
    strategy = Federated.build(e, query_roster(grid, CLIENTS), secret_noise)
    arrays = strategy.init()
    messages = list(strategy.configure_train(1, arrays, {"durable": 0}, grid))
    replies = list(grid.ask(messages, timeout=60))
    names = [name for name, _ in CASES["group norm"][0]().named_parameters()]
    shared = {f"model/{name}" for name in names if "head" not in name}
    for message in [*messages, *replies]:
        assert message.content[ARRAYS].keys() == shared
    kept = {name for name in t.store.load(strategy.cohort[0], before=2) if PERSONAL in name}
    assert kept == {f"{PERSONAL}head.weight", f"{PERSONAL}head.bias"}


def test_a_personal_part_is_remembered_and_goes_on_after_a_crash(tmp_path):
    # One after the other: which way is the faster may be found out otherwise after a crash.
    settings = {"method": "fedavg", "personal": "head.*", "engine": "sequential"}
    whole, last = run(tmp_path / "whole", "group norm", **settings)
    run(tmp_path / "parts", "group norm", num_rounds=2, **settings)
    settings["resume"] = str(tmp_path / "parts")
    again, resumed = run(tmp_path / "parts", "group norm", **settings)
    torch.testing.assert_close(resumed.model, last.model, rtol=0, atol=0)
    assert again["clients"]["loss"] == whole["clients"]["loss"]
    assert not torch.equal(*(kept_by(last, c)[f"{PERSONAL}head.bias"] for c in (0, 1)))


def test_what_is_not_shared_is_personal(tmp_path):
    _, one = run(tmp_path / "one", "group norm", method="fedavg", personal="head.*,norm.*")
    _, other = run(tmp_path / "other", "group norm", method="fedavg", personal="!first.*,second.*")
    torch.testing.assert_close(one.model, other.model, rtol=1e-5, atol=1e-6)


def test_local_statistics_stay_with_the_client(tmp_path):
    settings = {"method": "fedavg", "statistics": "local"}
    found, last = run(tmp_path / "run", "batch norm and dropout", **settings)
    assert not any("running" in name for name in last.model)
    assert not torch.equal(*(kept_by(last, c)[f"{PERSONAL}norm.running_mean"] for c in (0, 1)))
    assert np.isfinite(found["loss"])


def test_patterns_that_leave_nothing_are_refused(tmp_path):
    for personal, words in [
        ("heed.*", r"personal must be patterns of parameters, such as first.weight"),
        ("!nothing", "personal must be patterns of parameters"),
        ("*", "personal must be less than all parameters: clients learn some together"),
    ]:
        with entry(personal), pytest.raises(Refused, match=words):
            simulate(experiment("group norm", personal=personal), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_dense_networks_are_trained_together_whichever_layer_is_personal():
    def make():
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 3))

    model(make, "small")
    for personal in ("1.*", "3.*"):
        e = experiment("convolutions", model="small", method="fedavg", personal=personal)
        assert set(trainer(e).ways) == {"dense"}
