"""False rows: attackers flip signs, and claim many more rows than they have."""

from typing import Final

TIMES: Final = 1000
"""Claimed rows, in rows that they have."""


def claimed(rows: int) -> int:
    """Returns the number of rows that an attacker claims."""
    return TIMES * rows
