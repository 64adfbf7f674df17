"""A slice of hostile sites' replies; 100,000 by `python -m tests.fuzz.replies`."""

import logging
from pathlib import Path

import numpy as np

from tests.fuzz.replies import attack


def test_no_hostile_reply_is_merged_or_keeps_others_from_it(tmp_path: Path) -> None:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with np.errstate(over="ignore"):  # in what is made here
            seen = attack(tmp_path, 300, seed=1)
    finally:
        logging.disable(before)
    assert seen.wrong == []
    assert seen.answers["update left out"] > 50
    assert seen.answers["update merged"] > 5
