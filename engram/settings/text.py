"""Settings of a column of texts, and what they do not go with."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engram.core.checks import Fault, clash

if TYPE_CHECKING:
    from engram.settings.shared import SharedSettings

FITTED: Final = ("words", "characters")
"""Tokenizers whose vocabulary is fitted on training rows."""


@dataclass(frozen=True)
class TextColumn:
    """A column of texts, and what makes rows of tokens of it.

    Attributes:
        name: Its name.
        tokenizer: One of ``FITTED``, or the path of a file.
        length: Tokens of a text that count.
        most: Most tokens of a vocabulary.
        least: Training rows of a client in which a word must be that its node tells.
    """

    name: str
    tokenizer: str = "words"
    length: int = 128
    most: int = 5000
    least: int = 5

    @property
    def file(self) -> Path | None:
        """The file of its vocabulary; None of one that is fitted."""
        return None if self.tokenizer in FITTED else Path(self.tokenizer)


def impossible_text(shared: "SharedSettings") -> Iterator[Fault]:
    """Yields settings that a column of texts does not go with."""
    text, source = shared.text, shared.source
    if text is None:
        return
    beside = f"empty where text-column is {text.name}, which is the only input"
    for key in ("input-columns", "optional-columns"):
        if value := getattr(shared, key.replace("-", "_")):
            yield clash(key, value, beside, "text-column")
    if not (source.has_columns or source.is_given):
        tables = "csv:PATH, parquet:PATH, arrow:PATH or hf:NAME, or data frames, for text-column"
        yield clash("dataset", source, tables, "text-column")
    if text.name in (shared.target_column, shared.task_column):
        yield clash("text-column", text.name, "another than those of targets and clients")
    if shared.task == "next-token":
        yield clash("task", shared.task, "another for text-column", "text-column")
    if shared.missing == "median":
        expected = "refuse, or indicator (an empty text) for text-column"
        yield clash("missing", shared.missing, expected, "text-column")
    if shared.privacy != "none" and text.file is None:
        expected = (
            f"a file where privacy is {shared.privacy}: a vocabulary that is fitted tells of rows "
            "without noise"
        )
        yield clash("tokenizer", text.tokenizer, expected, "privacy", "text-column")
