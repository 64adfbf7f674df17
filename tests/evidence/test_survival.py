"""Coverage and naming of hazards between sites, in small; figures are in docs/results.md."""

import numpy as np

from tests.evidence.survival import COEF, Cell, own_outcome, shared_outcome

ALIKE = {-1: COEF, 1: COEF}


def test_intervals_hold_and_the_site_that_is_off_is_named():
    """Fewer than 9 of 12 intervals of level 0.95 hold with a probability of 0.002."""
    own = np.sum([own_outcome(Cell(1, 10, 0.1), draw) for draw in range(12)], axis=0)
    assert (own >= 9).all()
    found = [shared_outcome(Cell(3, 50, off=1.0), draw, ALIKE) for draw in range(12)]
    hull, _, _, right, column, wrong = (np.sum(part, axis=0) for part in zip(*found, strict=True))
    assert (hull >= 9).all()
    assert right >= column >= 8
    assert wrong <= 4
    alike = [shared_outcome(Cell(5, 10), draw, ALIKE) for draw in range(12)]
    assert (np.sum([one.mean for one in alike], axis=0) >= 9).all()
    assert (np.mean([one.ratio for one in alike], axis=0) < 1.6).all()
