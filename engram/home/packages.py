"""A model with its description and its card, to be written into a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from torch import nn

from engram.home.exported import Exported, Format
from engram.settings.errors import Refused

_CARD: Final = "card.md"
_COEFFICIENTS: Final = "coefficients.csv"


class Package(NamedTuple):
    """A model with its description and its card.

    Attributes:
        exported: The description.
        module: The model.
        card: The card, in Markdown.
        scores: The rows of the card's table of scores.
        notes: What its users should know.
        table: Its coefficients as a CSV file; empty for a network.
    """

    exported: Exported
    module: nn.Module
    card: str
    scores: list[tuple[str, ...]]
    notes: Sequence[str] = ()
    table: str = ""

    def write(self, folder: Path, format_: Format) -> None:
        """Writes all of it into a folder.

        Raises:
            Refused: As ``Exported.write``.
        """
        table = {_COEFFICIENTS: self.table} if self.table else {}
        self.exported.write(folder, self.module, format_, {_CARD: self.card} | table)


def check_free(folder: Path) -> None:
    """Refuses a folder that is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} is there already: give out another folder")
