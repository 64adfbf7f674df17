"""Methods for networks as Flower strategies, each imported when it is asked for.

``from engram.strategies import Ditto``, for clients with a training loop of their own: see
``engram.flower``. Strategies of the platform's own rounds are in ``running``.
"""

from typing import TYPE_CHECKING, Any

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.strategies.by_name import class_of as class_of
    from engram.strategies.flower_strategy import MethodStrategy as MethodStrategy

_get, *_ = attach(__name__, __file__)


def __getattr__(name: str) -> Any:
    if not name[:1].isupper() or name == "MethodStrategy":
        return _get(name)
    return globals().setdefault(name, _get("class_of")(name))
