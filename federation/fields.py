"""What some settings of an experiment are, beyond their types: checked, and brought into a form."""

import difflib
import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from engram.brief import brief
from engram.checks import require
from federation.algorithms import ALGORITHMS, TABLES

__all__ = ["Float", "Int", "known_algorithm", "known_device", "no_bool", "widths"]


def no_bool(value: object) -> object:
    """Refuses what is no number, but would be taken for one."""
    # bool is a subclass of int, and `num-rounds = true` is a slip, not 1.
    require(not isinstance(value, bool), "value", value, "a number")
    return value


_WIDEST = 2**20  # of a layer
_DEEPEST = 64  # hidden layers

Int = Annotated[int, BeforeValidator(no_bool), Field(le=2**32)]
"""A whole number that sums and products of many of still fit 64 bits."""

Float = Annotated[float, BeforeValidator(no_bool), Field(allow_inf_nan=False)]


def widths(value: object) -> str:
    """Returns whole numbers with commas as text; `hidden=40` and `hidden="40,40"` are natural."""
    text = value.replace(" ", "") if isinstance(value, str) else brief(value)
    ok = re.fullmatch(r"([1-9]\d*(,[1-9]\d*)*)?", text, re.ASCII)
    require(bool(ok), "hidden", value, "whole numbers with commas, such as 40,40")
    layers = text.split(",") if text else []
    small = len(layers) <= _DEEPEST and all(
        len(width) <= len(str(_WIDEST)) and int(width) <= _WIDEST for width in layers
    )
    require(small, "hidden", value, f"at most {_DEEPEST} widths of at most {_WIDEST}")
    return text


def known_algorithm(value: str) -> str:
    """Returns an algorithm's name; for another, says which may have been meant."""
    known = [*ALGORITHMS, *TABLES]
    near = difflib.get_close_matches(value[:100], known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    require(value in known, "algorithm", value, f"one of {', '.join(known)}{hint}")
    return value


def known_device(value: str) -> str:
    """Returns a device's name."""
    require(bool(re.fullmatch(r"cpu|cuda(:\d+)?", value)), "device", value, "cpu, cuda or cuda:N")
    return value
