"""Short representations of values, for error messages."""

import reprlib
from typing import Final


def brief(value: object) -> str:
    """Returns the ``repr`` of a value, shortened if it is long."""
    return _SHORT.repr(value)


class _Short(reprlib.Repr):
    """Handles long texts, bytes and integers, which ``reprlib`` would first write out in full."""

    def repr_str(self, x: str, level: int) -> str:
        if level < self.maxlevel or len(x) > _TEXT:
            return super().repr_str(x, level)
        return repr(x)

    def repr_bytes(self, x: bytes, level: int) -> str:
        del level
        return repr(x[: self.maxstring]) + ("..." if len(x) > self.maxstring else "")

    def repr_int(self, x: int, level: int) -> str:
        digits = x.bit_length() <= 128  # Python refuses to write out thousands
        return super().repr_int(x, level) if digits else f"<integer of {x.bit_length()} bits>"


_SHORT: Final = _Short()
_TEXT: Final = 100  # characters of a text, such as a file's name, that is shown as it is
