"""One way to refuse a bad argument: name it, show it, say what would have been accepted."""

__all__ = ["require"]


def require(ok: bool, name: str, value: object, expected: str) -> None:
    """Raises ``ValueError`` unless ``ok``, e.g. "beta must be in (0, 1], got 1.5"."""
    if not ok:
        raise ValueError(f"{name} must be {expected}, got {value!r}")
