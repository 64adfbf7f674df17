"""Pooling: one model for the rows of all tasks, which ignores that tasks differ."""

from collections.abc import Sequence

import numpy as np

from engram.core.checks import require
from engram.tables.families import FamilyName
from engram.tables.site import Rows, SiteEstimate, estimate_site


def condense(rows: Rows) -> Rows:
    """Returns at most d + 1 rows that are equivalent for linear models.

    They are R of the QR factorization of (X y), with equal weights. X'X, X'y, y'y and n_m stay the
    same, and so do OLS, its standard errors, the LASSO and pooling, up to rounding.
    """
    x, y, counts = rows.counted()
    r = np.linalg.qr(np.sqrt(counts)[:, None] * np.column_stack([x, y]), mode="r")
    each = counts.sum() / len(r)
    r = r / np.sqrt(each)
    return Rows(r[:, :-1], r[:, -1], np.full(len(r), each))


def pool(tasks: Sequence[Rows], *, family: FamilyName = "linear") -> SiteEstimate:
    """Fits one model to the rows of all tasks: OLS on all data, or maximum likelihood.

    If tasks differ, its bias does not vanish with more rows or more tasks (Section 4.1).

    Raises:
        ValueError: If there is no task.
    """
    require(len(tasks) > 0, "number of tasks", 0, "at least 1")
    parts = [(condense(rows) if family == "linear" else rows).counted() for rows in tasks]
    x, y, counts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return estimate_site(Rows(x, y, counts), family=family)
