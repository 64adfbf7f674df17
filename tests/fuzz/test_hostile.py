"""A slice of a hostile server's requests; 10,000 by `python -m tests.fuzz.hostile`."""

from pathlib import Path

from tests.fuzz.hostile import STEPS, attack


def test_no_request_goes_beyond_a_nodes_policy(tmp_path: Path) -> None:
    seen = attack(tmp_path, 250, seed=0)
    assert seen.wrong == []
    assert seen.steps <= STEPS
    assert seen.answers["done train"] > 5
    assert seen.answers["policy"] > 5
