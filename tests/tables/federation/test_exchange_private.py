"""MOLAR between sites whose statistics have noise: what leaves, what it costs, what is refused."""

import numpy as np
import pytest

from engram.client.memory import RamStore
from engram.data.tables.tables import table_data
from engram.guards.calibration import noise_multiplier
from engram.server.run import run as run_on
from engram.settings.errors import Refused
from engram.simulations.grid import InProcessGrid
from engram.tables.federation.host import TableSites
from tests.epsilons import epsilon
from tests.samples import entry
from tests.tables.federation.sites import SITES_THERE, run, settings

PRIVATE = {"privacy": "example", "clip": 100.0}


def test_almost_without_noise_sites_send_their_own_estimates():
    e = settings(**PRIVATE | {"clip": 30.0}, noise_multiplier=1e-6)
    sites = TableSites(e, table_data(e), RamStore())
    for client in range(SITES_THERE):
        sent, own = sites.answer(client, None, 1)[0], sites.estimate(client)[0]
        np.testing.assert_allclose(sent.coef, own.coef, atol=1e-3)
        np.testing.assert_allclose(sent.standard_error, own.standard_error, rtol=1e-2)


def test_what_stays_at_a_site_has_no_noise(tmp_path):
    _, plain = run(tmp_path / "plain")
    _, kept = run(tmp_path / "run", **PRIVATE, noise_multiplier=1.0)
    for client in range(SITES_THERE):
        np.testing.assert_array_equal(kept[client][3], plain[client][3])
        assert not np.array_equal(kept[client][4], plain[client][4])


def test_a_run_claims_one_release_for_each_row(tmp_path):
    found, _ = run(tmp_path / "run", **PRIVATE, noise_multiplier=2.0)
    assert found["epsilon"] == pytest.approx(epsilon(2.0, 1, 1e-5))
    words = "one of a client's training rows is zeroed out (zero-out adjacency)"
    assert found["adjacency"] == words


def test_the_noise_for_a_target_is_solved_for():
    e = settings(**PRIVATE, epsilon=1.0)
    assert epsilon(noise_multiplier(e), 1, e.delta) == pytest.approx(1.0, rel=1e-2)
    assert epsilon(noise_multiplier(e), 1, e.delta) <= 1.0


def test_each_answer_has_new_noise_and_a_node_tells_no_losses():
    e = settings(**PRIVATE, noise_multiplier=1.0)
    sites = TableSites(e, table_data(e), RamStore(), covers=True)
    (one, note), (other, _) = (sites.answer(0, None, 1) for _ in range(2))
    assert note is None
    assert not np.array_equal(one.coef, other.coef)
    shared = type("S", (), {"coef": sites.estimate(0)[0].coef, "size": 1.0})()
    told = sites.personalize(0, shared, np.zeros(21), server_round=1)
    assert told["rows"] == 0
    assert all(np.isnan(told[f"loss-{name}"]) for name in ("own", "shared", "personal"))


def test_reasons_why_a_site_fails_stay_in_its_log(tmp_path, warnings_of_engram):
    e = settings(**PRIVATE, noise_multiplier=1.0)
    data = table_data(e)
    data.train[4].x[7, 3] = np.nan
    grid = InProcessGrid(TableSites(e, data, RamStore(), covers=True), [[c] for c in range(12)])
    found = run_on(grid, e, tmp_path / "run", engine="vectorized")
    assert found["left-out"] == {"4": "its log says why"}
    lines = warnings_of_engram.text.splitlines()
    assert sum("client 4: task 4: column x3 has NaN in row 7" in line for line in lines) == 2
    assert any("client 4 lacks scores: its log says why" in line for line in lines)


def test_settings_without_noise_are_refused_by_name():
    for special, says in [
        ({"privacy": "local"}, "privacy must be none or example for molar"),
        ({"privacy": "central"}, "privacy must be none or example for molar"),
        ({"clip": 0.0}, "privacy = example needs .* set clip"),
        ({"family": "logistic", "dataset": "sparse-logistic"}, "family must be linear where"),
        ({"sharing": "adaptive"}, "sharing must be median where privacy is example"),
        ({"missing": "median"}, "depend on the others: missing = median ends that"),
        ({"method": "meta-ban", "dataset": "simulated"}, "privacy"),
    ]:
        with entry(special, says), pytest.raises(Refused, match=says):
            settings(**PRIVATE | special)
