"""Packages that only some commands need, and by which extra they come."""

from importlib.util import find_spec

from engram.settings.errors import Refused


def need(module: str, extra: str) -> None:
    """Refuses to go on without a package.

    Raises:
        Refused: It is not installed; the line says how to get it.
    """
    if find_spec(module) is None:
        raise Refused(f"{module} is not installed: pip install 'engram[{extra}]'")
