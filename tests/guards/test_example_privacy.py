"""Clients whose steps hide single rows: beside plain torch, audited, accounted, refused by name.

The audit is that of ``tests.strategies.running.test_audit``, with rows for clients: a canary is a
row whose gradient moves a weight of its own that no other row moves.
"""

import json

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant

from engram.core.slots import flat
from engram.core.streams import Stream
from engram.guards.accounting.accountant import PrivacyAccountant
from engram.guards.accounting.guarantee import spent
from engram.guards.calibration import plan_of
from engram.guards.noise import secret_noise, simulated_noise
from engram.guards.secret_samples import row_samples
from engram.settings.errors import Refused
from engram.sites.ledger import Ledger
from engram.wire.wire import CLIENTS, METRICS, SECONDS, WITHHELD
from tests.guards.test_examples import by_a_loop
from tests.samples import entry
from tests.sites.budgets import DELTA, books, evaluate, policy, roster, told, train
from tests.strategies.running.test_audit import found_by
from tests.support import (
    assert_same,
    initial_model,
    run_rounds,
    small,
    train_clients,
    trainer,
    write_npz,
)

pytestmark = pytest.mark.usefixtures("afresh")

EXAMPLE = {"privacy": "example", "clip": 0.5, "noise_multiplier": 1.0}
SUPPORTED = ["fedavg", "fedprox", "fedper", "fedrep", "lg-fedavg", "fedadam", "fedbabu"]
REFUSED_BY_NAME = ["ditto", "local-moml", "per-fedavg", "apfl", "fedproto", "ifca", "feddbe"]
ASKED = [2, 3, 5]


def settings_of(method="fedavg", **more):
    return small(method=method, **EXAMPLE | more)


def trained(e, engine="vectorized"):
    t = trainer(e, engine=engine, noise=simulated_noise(e.seed))
    return t, train_clients(t, initial_model(t), ASKED, server_round=1, durable=0)


# --- Steps ---------------------------------------------------------------------------------------


def dense_loss(w, batch):
    z = batch[0].flatten(1)
    for layer in range(len(w) // 2):
        z = z.relu() if layer else z
        z = z @ w[f"dense{layer}.weight"].T + w[f"dense{layer}.bias"]
    return torch.nn.functional.cross_entropy(z, batch[1])


@pytest.mark.parametrize("hidden", ["", "8"])
def test_a_round_is_that_of_a_loop_in_plain_torch(hidden):
    """FedAvg by torch.autograd, a row at a time, with the same samples and noise."""
    e = settings_of(hidden=hidden)
    t, done = trained(e)
    noise, eta, names = simulated_noise(e.seed), e.own.eta, sorted(initial_model(t)["model"])
    for at, client in enumerate(ASKED):
        w, own = dict(initial_model(t)["model"]), t.data.train.rows[client]
        expected = min(e.batch_size, len(own))
        for step in range(1, e.local_steps + 1):
            drawn = noise(len(own), Stream.LOCAL_STEPS, 1, client, step).double()
            below = drawn < torch.special.ndtri(torch.tensor(expected / len(own)).double())
            batch = t.data.train.take(torch.from_numpy(own[below.numpy()]))
            total = by_a_loop(w, batch, torch.ones(len(batch[1])), e.clip, names, dense_loss)
            size = sum(leaf.numel() for leaf in w.values())
            normal, start = noise(size, Stream.CLIENT_NOISE, 1, client, step), 0
            for name in names:
                part = normal[start : start + w[name].numel()].view_as(w[name])
                start += part.numel()
                moved = (total[name] + e.noise_multiplier * e.clip * part) / expected
                w[name] = w[name] - eta * moved
        own = {name: leaf[at] for name, leaf in done.slots["model"].items()}
        assert_same(own, w, atol=2e-5)


def test_engines_agree():
    for method in SUPPORTED:
        with entry(method):
            one, other = (
                trained(settings_of(method), engine)[1] for engine in ("vectorized", "sequential")
            )
            assert_same(one.slots, other.slots, atol=2e-5)
            assert one.losses == []


def test_samples_are_secret_and_follow_the_rate():
    e = settings_of(batch_size=8, local_steps=50)
    t = trainer(e)
    rate = plan_of(e, len(t.data.train.rows[2])).row_rate
    _, size, sample = row_samples(e, t.data.train, [2], 1, simulated_noise(0), 3)
    counts = sample.taken.reshape(50, size).sum(1)
    mean, n = float(counts.mean()), len(t.data.train.rows[2])
    assert abs(mean - 8) < 5 * np.sqrt(n * rate * (1 - rate) / 50)
    assert len(set(counts.tolist())) > 3
    one, other = (t.sampler.draw([2], 1) for _ in range(2))  # as on a node
    assert one.rows.shape != other.rows.shape or not torch.equal(one.rows, other.rows)
    steps = [secret_noise(9, Stream.CLIENT_NOISE, 1, 2, 1) for _ in range(2)]
    assert not torch.equal(*steps)


def test_a_client_of_few_rows_takes_all_of_them():
    e = settings_of(batch_size=500)
    t = trainer(e)
    rows, size, sample = row_samples(e, t.data.train, [2], 1, simulated_noise(0), 3)
    assert size == len(t.data.train.rows[2]) == float(sample.expected)
    assert sample.taken.all()
    assert sorted(rows[0, :size]) == sorted(t.data.train.rows[2])


# --- Accounting ----------------------------------------------------------------------------------


def test_a_run_claims_the_epsilon_of_its_most_exposed_row():
    e = settings_of(batch_size=10)
    examples = [100, 400, 50]
    accountant = PrivacyAccountant(e, 0, None, (), lambda: examples)
    for cohort in ([0, 1], [0, 1], [1, 2]):
        accountant.note(cohort)
    each = [spent(e, 2, 100), spent(e, 3, 400), spent(e, 1, 50)]
    assert accountant.spent["epsilon"] == max(each)
    assert "training rows is zeroed out (zero-out adjacency)" in accountant.claim["adjacency"]


# --- Audit ---------------------------------------------------------------------------------------


def audited(tmp_path, multiplier):
    """Returns what an attacker finds who sees the model, of rows of a client that train."""
    rows = 240
    x, y = 10 * np.eye(rows, dtype=np.float32), np.arange(rows) % 2
    how = {"dataset": write_npz(tmp_path / "rows.npz", x=x, y=y), "noise_multiplier": multiplier}
    how |= {"clip": 0.1, "num_clients": 1, "partition": "iid", "clients_per_round": 1}
    how |= {"hidden": "", "batch_size": 30, "local_steps": 5, "fedavg.eta": 0.1}
    seen, unseen = [], []
    for seed in range(4):
        e = settings_of(**how, seed=seed)
        t = trainer(e, noise=simulated_noise(seed))
        own = t.data.train.rows[0]
        x, y = t.data.train.take(torch.from_numpy(own))
        there = x.flatten(1).argmax(1)
        _, server = run_rounds(t, [[0]] * 2)
        moved = server["model"]["dense0.weight"] - initial_model(t)["model"]["dense0.weight"]
        sign = torch.ones(rows)
        sign[1::2] = -1  # a row's label is that of its number: its own weight grows
        score = sign * (moved[0] - moved[1])
        mask = torch.zeros(rows, dtype=torch.bool)
        mask[there] = True
        assert torch.equal(y % 2, there % 2)
        seen.append(score[mask])
        unseen.append(score[~mask])
    return found_by(torch.cat(seen), torch.cat(unseen)), (e, len(own))


def test_an_audit_finds_something_and_no_more_than_is_claimed(tmp_path):
    found, (e, rows) = audited(tmp_path, 0.5)
    assert 0.02 * spent(e, 2, rows) < found <= spent(e, 2, rows)


def test_an_audit_finds_out_a_thirtieth_of_the_noise(tmp_path):
    found, (e, rows) = audited(tmp_path, 0.1)
    assert found > spent(e.model_copy(update={"noise_multiplier": 3.0}), 2, rows)


# --- Nodes ---------------------------------------------------------------------------------------

NODE = EXAMPLE | {"method": "fedavg", "batch_size": 4}
ROWS_ONLY = 'privacy = ["example"]'


def test_a_node_notes_its_steps_and_sends_neither_losses_nor_seconds(tmp_path):
    policy(tmp_path, epsilon=50.0, more=ROWS_ONLY)
    assert roster(tmp_path, **NODE).error is None
    for nonce in ("a", "b"):
        reply = train(tmp_path, nonce=nonce, **NODE)
        details = reply.content[CLIENTS]
        assert details["losses"] == []
        assert SECONDS not in details
        assert "train-loss" not in reply.content[METRICS]
    rows = len(trainer(small(**NODE)).data.train.rows[0])
    assert details["examples"] == [rows]
    e = small(**NODE)
    lines = books(tmp_path, 50.0).lines
    assert [line["cost"] for line in lines] == [0.0, 0.0]
    key = f"1.0 at {4 / rows!r}"
    assert [line["steps"] for line in lines] == [{key: e.local_steps}, {key: 2 * e.local_steps}]
    assert [line["epsilon"] for line in lines] == [spent(e, 1, rows), spent(e, 2, rows)]
    scores = evaluate(tmp_path, **NODE).content[CLIENTS]
    assert set(scores) > {"ids", "queries", "accuracy", "loss"}
    assert scores[WITHHELD] is True
    for name in set(scores) - {"server-round", "ids", "queries", WITHHELD}:
        assert np.isnan(scores[name]).all(), name
    assert scores["queries"] == [1]


def test_a_budget_of_rows_ends(tmp_path):
    rows, e = len(trainer(small(**NODE)).data.train.rows[0]), small(**NODE)
    policy(tmp_path, epsilon=spent(e, 2, rows) + 1e-9, more=ROWS_ONLY)
    answers = [train(tmp_path, nonce=str(i), **NODE) for i in range(3)]
    assert [not answer.error for answer in answers] == [True, True, False]
    assert "this site's privacy budget is spent" in told(answers[-1])


def test_a_total_is_of_rows_only_where_the_site_says_so(tmp_path):
    policy(tmp_path)
    answer = told(train(tmp_path, **NODE))
    assert "privacy must be local where epsilon has a total, got example" in answer
    policy(tmp_path, more=ROWS_ONLY)
    assert "privacy must be example" in told(train(tmp_path))


@pytest.mark.parametrize("deleted", [False, True])
def test_a_damaged_or_deleted_ledger_forgets_no_step(tmp_path, deleted):
    book = Ledger(tmp_path / "ledger", 1e6, DELTA)
    for _ in range(2):
        book.spend("a" * 64, 0.5, {"kind": "train"}, {"1.0 at 0.1": 5})
    (file,) = (tmp_path / "ledger").glob("*.jsonl")
    last = json.loads(file.read_text().splitlines()[-1])
    assert last["steps"] == {"1.0 at 0.1": 10}
    if deleted:
        file.unlink()
    else:
        file.write_text(file.read_text().replace('"train"', '"trein"', 1))
    assert book.accept() is not None
    after = book.read()
    assert after.steps == {0: {"1.0 at 0.1": 10}}
    assert after.totals == {0: 1.0}
    more = book.spend("a" * 64, 0.0, {"kind": "train"}, {"1.0 at 0.1": 1, "2.0 at 0.5": 3})
    assert more.steps == {"1.0 at 0.1": 11, "2.0 at 0.5": 3}
    accountant = PLDAccountant()
    for z, q, count in ((1.0, 0.1, 11), (2.0, 0.5, 3)):
        event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
        accountant.compose(event, count)
    accountant.compose(dp_accounting.GaussianDpEvent(1.0))
    assert more.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=0.01)


# --- Refusals ------------------------------------------------------------------------------------


def test_other_methods_are_refused_by_name():
    for method in REFUSED_BY_NAME:
        words = f"one gradient a step alone: those of {method} look"
        with entry(method), pytest.raises(Refused, match=words):
            settings_of(method)


def test_a_target_and_batch_norm_are_refused():
    with pytest.raises(
        Refused, match="whatever their rows, can be solved for: set another privacy"
    ):
        settings_of(epsilon=3.0, noise_multiplier=1.0)
    with pytest.raises(Refused, match="without batch norm"):
        trainer(settings_of(model="resnet", norm="batch", statistics="local"))


def test_all_slots_are_finite_and_moved():
    _, done = trained(settings_of("fedper"))
    assert "dense1.weight" not in done.slots["model"]  # the head stays, though it had noise
    assert all(leaf.isfinite().all() for leaf in flat(done.slots).values())
