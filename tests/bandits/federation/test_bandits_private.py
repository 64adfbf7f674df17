"""A bandit between sites whose sums have noise: what leaves, what it costs, what is refused."""

import json
from math import sqrt

import numpy as np
import pytest

from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.guards.accounting.accountant import PrivacyAccountant
from engram.guards.accounting.client_epsilon import spent_by_client
from engram.guards.accounting.guarantee import guarantee
from engram.guards.calibration import noise_multiplier
from engram.guards.noise import secret_noise
from engram.runs.run import Run
from engram.settings.errors import Refused
from engram.sites.ledger import Ledger
from engram.sites.privacy_account import Account
from tests.bandits.federation.test_bandits import COUNT, coefs, run, settings
from tests.epsilons import gaussian
from tests.samples import entry

PRIVATE = {"privacy": "example", "clip": 8.0}
ADJACENT = "one of a client's turns is replaced by any other"


def claimed(multiplier, releases=1):
    """Epsilon at 1e-5 of Gaussian releases that a turn moves by sqrt(2)."""
    return gaussian(sqrt(2 * releases) / multiplier)


def private(folder, **special):
    return run(folder, **PRIVATE | special)


def test_almost_without_noise_sites_play_as_without_privacy(tmp_path):
    plain, there = run(tmp_path / "plain")
    found, store = private(tmp_path / "run", clip=12.0, noise_multiplier=1e-6)
    assert found["clients"]["regret"] == pytest.approx(plain["clients"]["regret"], rel=0.02)
    mine = [store.load(client, before=11)["coefs"].numpy() for client in range(COUNT)]
    np.testing.assert_allclose(np.stack(mine), coefs(there), atol=1e-3)


def test_a_run_claims_one_release_for_each_turn_whatever_its_rounds(tmp_path):
    found, _ = private(tmp_path / "run", noise_multiplier=2.0)
    assert found["epsilon"] == pytest.approx(claimed(2.0), rel=1e-4)
    assert found["adjacency"] == ADJACENT
    each = spent_by_client(Run.open(tmp_path / "run"))
    assert list(each.values()) == pytest.approx([claimed(2.0)] * COUNT, rel=1e-4)


def test_each_repeated_round_is_one_release_more(tmp_path):
    e, file = settings(**PRIVATE, noise_multiplier=2.0), tmp_path / "begun"
    everyone = list(range(COUNT))
    first = PrivacyAccountant(e, 0, file, examples=lambda: [256] * COUNT)
    for _ in range(4):
        first.note(everyone)
    assert first.spent["epsilon"] == pytest.approx(claimed(2.0), rel=1e-4)
    resumed = PrivacyAccountant(e, 2, file, examples=lambda: [256] * COUNT)  # two were lost
    assert resumed.spent["epsilon"] == pytest.approx(claimed(2.0, 3), rel=1e-4)


def test_the_noise_for_a_target_does_not_grow_with_the_rounds():
    few, many = (noise_multiplier(settings(**PRIVATE, epsilon=2.0, num_rounds=n)) for n in (2, 9))
    assert few == many
    assert claimed(few) == pytest.approx(2.0, rel=1e-3)
    assert claimed(few) <= 2.0
    told = guarantee(settings(**PRIVATE, epsilon=2.0))
    assert "epsilon at most 2 at delta 1e-05 after 9 rounds" in told
    assert ADJACENT in told


def test_a_sites_ledger_charges_each_answer(tmp_path):
    """It cannot know whether the server repeats a round, whose turns are the same again."""
    for e, spent in (
        (settings(**PRIVATE, noise_multiplier=4.0), claimed(4.0)),
        (settings(), 1e6),  # without noise, whatever a policy lets through
    ):
        account = Account(Ledger(tmp_path, 1.01 * claimed(4.0), 1e-5), "a" * 64, e, "", [256], "")
        if spent < 1e6:
            account.check()
        with pytest.raises(Refused, match="privacy budget is spent: epsilon 0 of"):
            account._replace(ledger=Ledger(tmp_path, 0.99 * spent, 1e-5)).check()


def test_a_node_tells_neither_turns_nor_rewards_nor_regrets():
    e = settings(**PRIVATE, noise_multiplier=1.0)
    host = host_of(Opening(e, RamStore(), noise=secret_noise, covers=True))
    for number in range(1, 8):
        estimates, told = host.play(0, None, server_round=number, durable=0)
        np.testing.assert_array_equal(told, np.zeros(3))
    assert estimates[0] is not None
    again, _ = host.play(0, None, server_round=7, durable=0)
    assert not np.array_equal(again[0].coef, estimates[0].coef)


def test_later_choices_follow_from_what_was_sent(tmp_path):
    """A site's coefficients after a batch are made of its noisy estimate, which it remembers."""
    _, store = private(tmp_path / "run", noise_multiplier=1.0)
    shared = np.array(Run.open(tmp_path / "run").results["shared"]["coef"][0])
    played = [store.load(client, before=10) for client in range(COUNT)]
    senders = [client for client, kept in enumerate(played) if "sent.coef" in kept]
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert len(senders) == last["estimates"] > COUNT // 2
    for client in senders:
        assert played[client]["fresh.y"].numel() == 0
        own = played[client]["sent.coef"].numpy()
        learned = store.load(client, before=11)["coefs"].numpy()[0]
        assert ((learned == own) | (learned == shared)).all()


def test_what_has_no_noise_is_refused_by_name():
    for special, says in [
        ({"privacy": "local"}, "privacy must be none or example for molar-bandit"),
        ({"clip": 0.0}, "privacy = example needs .* set clip"),
        ({"bandit_model": "P"}, "bandit-model must be C where privacy is example"),
        ({"history": "all"}, "history must be batch where privacy is example"),
    ]:
        with entry(special, says), pytest.raises(Refused, match=says):
            settings(**PRIVATE | special)


@pytest.mark.parametrize("method", ["molar", "molar-bandit"])
def test_a_target_without_privacy_is_refused(method):
    with pytest.raises(Refused, match=r"epsilon = 2\.0 needs .*: set another privacy"):
        settings(method=method, epsilon=2.0)
