"""Fewest rows behind updates, scores and sums of columns that leave a site."""

import numpy as np
import pytest

from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.cohort.trainer.trainer import Trainer
from engram.core.standardization import Moments
from engram.data.federated import Split
from engram.data.load_federation import own_data
from engram.data.schema.columns import SUMS, Told
from engram.data.source import Source
from engram.settings.errors import AWAITED
from engram.sites.policy import Policy, keep_policy
from engram.sites.policy_checks import of_sums
from engram.tables.shrinkage import combine
from engram.wire.messages import EVALUATE, TRAIN
from engram.wire.wire import CONFIG, ROSTER_QUERY
from tests.sites.budgets import answer_of, at, model_for, refusal
from tests.sites.sites import ask
from tests.support import initial_model, small, trainer

pytestmark = pytest.mark.usefixtures("afresh")


def test_rounds_that_draw_too_few_different_rows_are_refused(tmp_path):
    """Two of 32 rows are drawn with replacement: in one of 32 rounds, it is one row twice."""
    settings = {"method": "fedavg", "batch_size": 1, "local_steps": 2, "num_rounds": 10**4}
    e, t = small(**settings), trainer(small(**settings))
    model, held = initial_model(t), t.data.train.rows[0]
    few = set[int]()
    for number in range(1, 121):
        drawn = held[np.random.default_rng([0, 6, number, 0]).integers(len(held), size=2)]
        content = model_for(e, number, model=model)
        reply = ask(tmp_path, TRAIN, content, **settings)
        assert (reply.error is not None) == (drawn[0] == drawn[1]), number
        if reply.error:
            few.add(number)
            told = refusal(reply)
            assert f"2 different rows, and client 0 draws 1 in round {number}: larger" in told
    assert len(few) >= 2
    noisy = {"privacy": "local", "noise_multiplier": 1.0, "clip": 1.0}
    content = model_for(e, min(few), model=model, training="a" * 16)
    assert ask(tmp_path, TRAIN, content, **settings, **noisy).error is None


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 4, "local_steps": 3},
        {"batch_size": 40, "local_steps": 3},
        {"batch_size": 5, "local_epochs": 2},
        {"batch_size": 7, "local_steps": 3, "order": "stream"},
    ],
    ids=str,
)
def test_different_rows_are_those_that_a_client_trains_on(monkeypatch, settings):
    t = trainer(
        small(**{"method": "fedavg", "partition": "dirichlet"} | settings), engine="sequential"
    )
    seen, take = set[int](), Split.take

    def noted(split, rows, *args):
        seen.update(rows.flatten().tolist())
        return take(split, rows, *args)

    for number, client in ((1, 0), (2, 3), (3, 7)):
        told = t.sampler.different(client, number)
        monkeypatch.setattr(Split, "take", noted)
        seen.clear()
        t.train(initial_model(t), [[client]], server_round=number, durable=0, losses=False)
        monkeypatch.undo()
        assert seen <= {*t.data.train.rows[client].tolist()}
        assert told == len(seen) > 1


def test_of_phases_the_one_that_draws_fewest_rows_counts():
    """FedRep's last phase alone trains what is sent: here one step of four, of three rows."""
    share = {"fedrep.personal_share": 0.75}
    t = trainer(small(method="fedrep", batch_size=3, local_steps=4, **share))
    for number in range(1, 40):
        held = t.data.train.rows[0]
        drawn = held[np.random.default_rng([0, 6, number, 0]).integers(len(held), size=12)]
        assert t.sampler.different(0, number) == len({*drawn[9:].tolist()})


@pytest.mark.parametrize("fraction", [0.1, 0.3])
def test_scores_of_a_trainings_few_test_rows_stay_at_the_site(tmp_path, fraction):
    """A server chooses test-fraction and model: of one row, accuracy would be its label."""
    rows = {"x": np.random.default_rng(0).normal(size=(20, 3)).astype("f4"), "y": np.arange(20) % 2}
    np.savez(tmp_path / "rows.npz", **rows)
    settings = {"method": "fedavg", "dataset": "npz:own", "model": "linear", "hidden": ""}
    settings |= {"num_clients": 1, "clients_per_round": 1, "test_fraction": fraction}
    e = small(**settings)
    data = own_data(e, Source(f"npz:{tmp_path / 'rows.npz'}"), 0)
    (tested,), model = data.test.rows, initial_model(Trainer(e, data, RamStore()))
    for least in (1, len(tested), len(tested) + 1):
        (tmp_path / "policy.toml").write_text(f"least-count = {least}\n")
        keep_policy(tmp_path, tmp_path, accept=True)
        node = at(tmp_path) | {"data": f"npz:{tmp_path / 'rows.npz'}"}
        reply = answer_of(e, EVALUATE, model_for(e, model=model), **node)
        assert not reply.error, reply.error
        details = reply.content["clients"]
        assert np.isnan(details["accuracy"][0]) == (least > len(tested))
        assert details["queries"] == [1 if least > len(tested) else len(tested)]


@pytest.mark.parametrize("rows", [4, 5])
def test_scores_of_a_tables_few_test_rows_stay_at_the_site(rows):
    e = small(method="molar", dataset="sparse-linear")
    host = host_of(Opening(e, RamStore(), least_scored=5))
    test = host.data.test[0]
    host.data.test[0] = test._replace(x=test.x[:rows], y=test.y[:rows])
    shared = combine([host.estimate(client)[0] for client in range(8)])
    found = host.personalize(0, shared, np.zeros(len(host.names)), server_round=1)
    assert (found["rows"], np.isnan(found["loss-own"])) == ((0, True) if rows < 5 else (5, False))


def test_sums_of_columns_are_of_enough_rows_and_of_no_site_whose_updates_leave_in_sums_alone():
    entry = Told(inputs=Moments(4, (1.0,), (2.0,))).to_config()
    assert entry.keys() <= SUMS
    (few,) = of_sums(Policy(), entry)
    assert few.startswith("sums of columns must be of 5 training rows (least-count), got 4")
    assert [*of_sums(Policy(least_count=4), entry)] == []
    (alone,) = of_sums(Policy(least_count=1, secure=3), entry)
    assert "alone (secure is 3)" in alone
    assert [*of_sums(Policy(secure=3), {"examples": [4]})] == []


@pytest.mark.parametrize("asked", [{}, {"training": "a" * 16}])
def test_sums_of_columns_wait_for_approval(tmp_path, asked):
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n" + "".join(f"{n / 2},{n % 2}\n" for n in range(40)))
    (tmp_path / "policy.toml").write_text("approval = true\n")
    e = small(
        method="fedavg", dataset="csv:own", target_column="y", num_clients=1, clients_per_round=1
    )
    content = {CONFIG: asked}
    reply = answer_of(e, ROSTER_QUERY, content, **at(tmp_path), data=f"csv:{path}")
    if asked:
        assert reply.error.code == AWAITED
    else:
        assert not SUMS & reply.content["roster"].keys()
