"""A slice of a hostile server's requests; 10,000 by `python -m tests.fuzz.hostile`."""

from tests.fuzz.hostile import MEBIBYTES, STEPS, attack


def test_no_request_goes_beyond_a_nodes_policy(tmp_path):
    seen = attack(tmp_path, 120, seed=0)
    assert seen.wrong == []
    assert seen.steps <= STEPS
    assert seen.mebibytes <= MEBIBYTES
    assert seen.answers["done train"] > 5
    assert seen.answers["policy"] > 5
