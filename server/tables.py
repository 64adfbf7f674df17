"""Which coordinator an algorithm for tables has, and its metrics in words."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from server.bandits import play
from server.exchange import exchange

__all__ = ["RUNS", "in_words"]

RUNS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "molar": exchange,
    "molar-bandit": play,
    "meta-ban": play,
}
"""By algorithm, what runs it; all have the arguments of ``server.exchange.exchange``."""


def in_words(found: Mapping[str, Any]) -> str:
    """Returns the metrics, or results, of a run in one line."""
    left_out = found["left-out"]
    count = len(left_out) if isinstance(left_out, Mapping) else left_out
    line = f"{found['sites']} sites" + (f", {count} left out" if count else "")
    if "regret" in found:
        told = f" in {found['told']:.0f} turns" if "told" in found else ""
        return f"{line}, regret {found['regret']:.4g}{told}"
    if found["loss-personal"] is None:
        return line
    own, shared, personal = (found[f"loss-{kind}"] for kind in ("own", "shared", "personal"))
    return f"{line}, held-out loss {personal:.4g} (alone {own:.4g}, shared {shared:.4g})"
