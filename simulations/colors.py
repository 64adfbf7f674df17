"""Colors of methods: one for each name, the same in every figure, table and process.

The ten colors can be told apart by people who see few colors (Petroff, "Accessible color sequences
for data visualization", 2021). Each comes with ten marks, so that names share a color seldom, and
a color and a mark hardly ever.
"""

from typing import Final, NamedTuple
from zlib import crc32

PALETTE: Final = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadb"),
)
_MARKS: Final = (
    *(("o", "circle"), ("s", "square"), ("^", "triangle-up")),
    *(("D", "diamond"), ("v", "triangle-down"), ("P", "cross"), ("X", "x")),
    *(("p", "pentagon"), ("h", "hexagon"), ("*", "star")),
)
_START: Final = 2973  # by which each built-in method has a color and mark of its own


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


def look_of(label: str) -> Look:
    """Returns the look of a method, by its name alone; fine-tuning does not change it."""
    number = crc32(label.partition(" + ")[0].encode(), _START) % (len(PALETTE) * len(_MARKS))
    mark, color = divmod(number, len(PALETTE))
    return Look(PALETTE[color], *_MARKS[mark])
