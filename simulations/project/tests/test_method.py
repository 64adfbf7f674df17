"""The method keeps the contract that all engines rely on."""

import your_project  # noqa: F401 - makes the network, the data and the method known
from engram.testing import check_method


def test_the_method_keeps_the_contract() -> None:
    """On this project's network and data."""
    check_method("anchored", model="Net", dataset="sites", partition="natural")
