"""Colors and marks of methods: no two methods of one figure look alike.

Eight of the ten colors are Petroff's ("Accessible color sequences for data visualization", 2021),
whose two grays would be taken for the lines that stand for other methods. Ten marks go with them.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple
from zlib import crc32

PALETTE: Final = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#006d77", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#ff8fab", "#92dadb"),
)
_MARKS: Final = (
    *(("o", "circle"), ("s", "square"), ("^", "triangle-up")),
    *(("D", "diamond"), ("v", "triangle-down"), ("P", "cross"), ("X", "x")),
    *(("p", "pentagon"), ("h", "hexagon"), ("*", "star")),
)
_START: Final = 110303  # by which each built-in method has a color and mark of its own


class Look(NamedTuple):
    """The color and the mark of a method.

    Attributes:
        color: As hexadecimal digits.
        mark: Matplotlib's name.
        symbol: Plotly's name of the same mark.
    """

    color: str
    mark: str
    symbol: str


_LOOKS: Final = [Look(color, *mark) for mark in _MARKS for color in PALETTE]


def looks_of(labels: Iterable[str]) -> dict[str, Look]:
    """Assigns each method of a figure a look of its own.

    Up to ten have a color each, and up to a hundred a color and a mark. A method has the look that
    its name draws, or the next one where that, or its color, is used more.
    """
    found: dict[str, Look] = {}
    for label in dict.fromkeys(labels):
        first, used = crc32(label.encode(), _START) % len(_LOOKS), [*found.values()]
        colors = [look.color for look in used]
        nearest = _LOOKS[first:] + _LOOKS[:first]
        found[label] = min(nearest, key=lambda look: (used.count(look), colors.count(look.color)))
    return found
