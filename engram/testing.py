"""Checks for tests of methods of your own, imported when they are first looked at."""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.contract_check import check_method as check_method  # noqa: PLC0414 - it is given on

__getattr__, __dir__, __all__ = attach(__name__, __file__)
