"""The benchmark of claims: twins differ by their cohorts alone, and both rules are counted."""

import numpy as np

from benchmarks import claims


def test_twins_have_the_same_clients_and_other_cohorts(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "SETTINGS", claims.SETTINGS | {"num-rounds": 1, "eval-every": 1})
    one, again, other = (claims.twin(0, k, tmp_path / str(i)) for i, k in enumerate((0, 0, 1)))
    assert one == again
    assert one["queries"] == other["queries"]
    assert one["loss"] != other["loss"]


def test_rates_count_false_claims_and_found_differences():
    """Clients of a seed agree: one seed tells each pair apart by itself, and together none."""
    seeds = np.random.default_rng(0).normal(size=(6, 4, 1))
    pool = np.repeat(seeds, 5, axis=2) + 1e-3 * np.random.default_rng(1).normal(size=(6, 4, 5))
    assert claims.rates(pool, 1, 3, 10, 100.0) == {"by_pairs": (1, 1), "simultaneous": (0, 0)}
    found = claims.rates(pool, 5, 3, 10, 100.0)
    assert found["simultaneous"][1] == 1.0
    assert found["simultaneous"][0] <= found["by_pairs"][0]
