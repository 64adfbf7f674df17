"""Flower strategies, one file per family of methods, imported when it is asked for.

Each method for networks is a class as well, for clients with a training loop of their own:
``from engram.strategies import Ditto``. See ``engram.flower``.
"""

from typing import TYPE_CHECKING, Any

from engram.lazy import attach
from engram.strategies.base import STRATEGIES, Row, RunStrategy, strategies

if TYPE_CHECKING:
    from engram.strategies.by_name import class_of as class_of
    from engram.strategies.flower_strategy import MethodStrategy as MethodStrategy

__all__ = ["STRATEGIES", "Row", "RunStrategy", "strategies"]
_get, *_ = attach(__name__, __file__)


def __getattr__(name: str) -> Any:
    if not name[:1].isupper() or name == "MethodStrategy":
        return _get(name)
    return globals().setdefault(name, _get("class_of")(name))
