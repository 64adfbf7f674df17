"""Division of a network's parameters into shared and personal ones."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from engram.checks import must
from engram.models.base import Model

__all__ = ["with_personal"]


def with_personal(
    model: Model,
    names: Iterable[str],
    *,
    personal: str,
    share: str,
    running: bool,
) -> Model:
    """Returns a network some of whose parameters are each client's own.

    Args:
        model: The network.
        names: Of its parameters.
        personal: Patterns of names, with commas, such as ``head.*``: whatever matches one is
            personal.
        share: Patterns likewise: where there are some, whatever matches none is personal.
        running: Whether running statistics are personal, too.

    Raises:
        ValueError: If a pattern matches nothing, or nothing is left to share.
    """
    called = {name: model.names.get(name, name) for name in names}
    found = set(model.running) if running else set()
    for key, text, kept in (("personal", personal, True), ("share", share, False)):
        patterns = [pattern.strip() for pattern in text.split(",") if pattern.strip()]
        for pattern in patterns:
            if not any(fnmatchcase(theirs, pattern) for theirs in called.values()):
                some = ", ".join(list(called.values())[:4])
                raise ValueError(must(key, pattern, f"patterns of parameters, such as {some}"))
        matched = {n for n, c in called.items() if any(fnmatchcase(c, p) for p in patterns)}
        if patterns:
            found |= matched if kept else called.keys() - matched
    if not called.keys() - found - model.running:
        raise ValueError(must("share", "nothing", "some parameters, which clients learn together"))
    return model._replace(personal=frozenset(found))
