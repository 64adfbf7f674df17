"""Checks for tests of methods of your own, imported when they are first looked at."""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from simulations.testing import check_method

__all__ = ["check_method"]

__getattr__, __dir__ = attach(__name__, {"check_method": "simulations.testing"})
