"""A slice of the cases that are made at random; all of them by `python -m benchmarks.fuzz`."""

import random
import time

import pytest

from benchmarks.fuzz.entries import ENTRIES, shares
from benchmarks.fuzz.harness import fuzz, judge
from federation.errors import Refused
from federation.experiment import Experiment


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    import logging

    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def test_no_case_ends_in_a_traceback_or_hangs():
    found = fuzz(ENTRIES, shares(200), seed=0, seconds=30.0)
    assert not found.findings
    assert sum(counts.total() for counts in found.counts.values()) >= 200
    for counts in found.counts.values():
        assert counts["accepted"] + counts["refused"] == counts.total()


def test_what_a_case_did_is_told(tmp_path):
    def hangs(rng, here):
        time.sleep(60)

    def breaks(rng, here):
        raise KeyError("x" if rng.random() < 2 else "y")

    def dies(rng, here):
        import os

        os._exit(3)

    def eats(rng, here):
        bytearray(2**40)

    def refuses(rng, here):
        Experiment.from_config({"alpha": "x"})

    cases = {case.__name__: case for case in (hangs, breaks, dies, eats, refuses)}
    numbers = dict.fromkeys(cases, range(1))
    found = fuzz(cases, numbers, seed=0, seconds=0.5)
    verdicts = {entry: +counts for entry, counts in found.counts.items()}
    assert {entry: list(counts) for entry, counts in verdicts.items()} == {
        "hangs": ["hang"],
        "breaks": ["traceback"],
        "dies": ["traceback"],
        "eats": ["traceback"],
        "refuses": ["refused"],
    }
    told = {finding.entry: finding.told for finding in found.findings}
    assert told["breaks"].startswith("KeyError: 'x'")
    assert told["dies"] == "the process ended with 3"
    assert told["eats"].startswith("MemoryError")

    def mumbles(rng, here):
        error = Refused("x")
        error.args = ("one line\nand another",)
        raise error

    assert judge(mumbles, random.Random(0), tmp_path)[0] == "unclear"
