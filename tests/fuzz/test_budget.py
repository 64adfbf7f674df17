"""A slice of what a server asks of a site with a total; more by `python -m tests.fuzz.budget`."""

from pathlib import Path

from tests.fuzz.budget import attack


def test_a_server_gets_nothing_that_is_not_paid(tmp_path: Path) -> None:
    found = attack(tmp_path, 150, seed=0)
    assert found.wrong == []
    assert min(found.answers[f"done {kind}"] for kind in ("train", "evaluate")) > 3
    assert found.answers["spent"] > 5
