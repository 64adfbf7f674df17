"""Tables of cases: those that `make test` samples, and those that one test goes through."""

from contextlib import contextmanager
from typing import Any

import pytest

# Methods that an engine can tell apart: a mean of models; kept models; differences; two phases, and
# a merge of each update; running statistics; several models; a network on the server; initial rows.
EIGHT = ("fedavg", "ditto", "scaffold", "fedpac", "fedbn", "fedem", "pfedhn", "local-moml")


def sampled(cases, quick) -> list[Any]:
    """Returns the cases of a table, of which `make test` runs the quick ones alone."""
    rows = {case: case if isinstance(case, tuple) else (case,) for case in cases}
    return [
        pytest.param(*row, marks=() if case in quick else pytest.mark.full)
        for case, row in rows.items()
    ]


@contextmanager
def entry(*case):
    """Names the entry of a table where its check fails."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"at the entry {case!r:.300}")
        raise
