"""Differences of clocks, in words."""

from datetime import timedelta

from engram.wire.clock import in_words
from tests.samples import entry


def test_a_difference_in_words():
    short = [(0, "0 seconds"), (-119, "119 seconds"), (120, "2 minutes")]
    for seconds, words in [*short, (7200, "2 hours"), (86400, "24 hours"), (-3 * 86400, "3 days")]:
        with entry(seconds):
            assert in_words(timedelta(seconds=seconds)) == words
