"""Writes the signatures of the methods' strategies for editors: strategies/__init__.pyi.

``python docs/tools/strategies.py``; a test compares it.
"""

import re
from inspect import Parameter, signature
from pathlib import Path

from engram import strategies
from engram.strategies.by_name import NAMES


def stub() -> str:
    """Returns the contents of ``__init__.pyi``."""
    imports = [
        "# Written by docs/tools/strategies.py.",
        "# ruff: noqa",
        "# fmt: off",
        "from collections.abc import Callable, Sequence",
        "from pathlib import Path",
        "from typing import Any, Literal",
        "from flwr.app import MetricRecord, RecordDict",
        "from torch.nn import Module",
        "from engram.guards.guard import Guard",
        "from engram.strategies.flower_strategy import MethodStrategy as MethodStrategy",
    ]
    return "\n".join([*imports, *map(_declaration, NAMES)]) + "\n"


def _declaration(name: str) -> str:
    net, *others = map(_parameter, signature(getattr(strategies, name)).parameters.values())
    given = ", ".join([net, "*", *others])
    return f"class {name}(MethodStrategy):\n    def __init__(self, {given}) -> None: ..."


def _parameter(parameter: Parameter) -> str:
    """Returns a parameter with names of classes in place of their paths."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", str(parameter))


if __name__ == "__main__":
    place = Path(__file__).parents[2] / "strategies" / "__init__.pyi"
    place.write_text(stub(), encoding="utf-8")
