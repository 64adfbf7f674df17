"""The ratios that the benchmark of bandits prints."""

from tests.evidence.molar_bandit import compare


def test_the_benchmark_compares_with_the_ols_bandit():
    found = compare("P", "batch", trials=2, horizon=80)
    assert found["OLSB"].tolist() == [1.0, 1.0]
    assert all((ratios > 0).all() for ratios in found.values())
    assert "TNB" in found
    assert "TNB" not in compare("C", "all", trials=1, horizon=2)
