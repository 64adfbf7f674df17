"""Texts as rows of tokens: words, characters, or those of a tokenizer of Hugging Face's library.

Token 0 is padding, 1 stands for whatever the vocabulary lacks, and its entries follow from 2 on.
Texts are in Unicode's form NFC: a letter with an accent is one character, however it was typed.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from engram.core.checks import require
from engram.core.standardization import Tokenizer

PADDING: Final = 0
UNKNOWN: Final = 1
LONGEST: Final = 64
"""Characters of the longest word of a vocabulary; longer ones are unknown."""

_FIRST: Final = 2  # token of a vocabulary's first entry
_WORD: Final = re.compile(r"\w+")


def split(text: str, by: str) -> Iterator[str]:
    """Yields a text's words, in lower case; or its characters, where ``by`` is ``characters``."""
    if by == "characters":
        yield from normalize("NFC", text)
    else:
        yield from (found.group() for found in _WORD.finditer(normalize("NFC", text.lower())))


def rows_with(texts: Iterable[str], by: str, length: int) -> Counter[str]:
    """Returns the number of texts with each word or character among their first ``length`` ones.

    A text counts once, however often it repeats a word: one row says little of its own.
    """
    found = Counter[str]()
    for text in texts:
        found.update({one for one in islice(split(text, by), length) if len(one) <= LONGEST})
    return found


def vocabulary(counts: Mapping[str, int], most: int) -> tuple[str, ...]:
    """Returns the commonest words, ``most`` of them; equally common ones in their own order."""
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:most])


def encode(texts: Collection[str], tokenizer: Tokenizer, length: int) -> npt.NDArray[np.int64]:
    """Returns the first ``length`` tokens of each text, (n, length), with padding at the end.

    Raises:
        ValueError: The library ``tokenizers`` cannot read the tokenizer, or is not installed.
    """
    numbers = _of_library if tokenizer.by == "tokenizers" else _of_vocabulary
    found = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, own in zip(found, map(numbers(tokenizer, length), texts), strict=True):
        row[: len(own)] = own
    return found


def tokenizer_from(contents: str, most: int, *, library: bool) -> Tokenizer:
    """Returns the tokenizer that a file holds, with ``most`` tokens at most.

    Args:
        contents: What is in the file.
        most: Tokens that a network has, beside those of padding and of what is unknown.
        library: Whether it is a ``tokenizer.json``; else it has a word on each line.

    Raises:
        ValueError: It is something else, or has more tokens; or as for ``encode``.
    """
    if library:
        tokenizer = Tokenizer("tokenizers", file=contents)
        size = 1 + max(_reader(contents).get_vocab().values(), default=-1)
    else:
        words: dict[str, None] = {}
        for number, line in enumerate(contents.splitlines(), 1):
            word = "".join(split(line, "words"))
            one = len(word) <= LONGEST and word == normalize("NFC", line.lower())
            require(bool(word) and one, f"line {number} of a vocabulary", line, "one word")
            words[word] = None
        tokenizer, size = Tokenizer("words", tuple(words)), len(words)
    require(size > 0, "tokens of a vocabulary", size, "at least 1")
    require(size <= most, "vocabulary", most, f"at least {size}, as its file has tokens")
    return tokenizer


def _of_vocabulary(tokenizer: Tokenizer, length: int) -> Callable[[str], Sequence[int]]:
    number = {word: _FIRST + k for k, word in enumerate(tokenizer.words)}
    by = tokenizer.by
    return lambda text: [number.get(one, UNKNOWN) for one in islice(split(text, by), length)]


def _of_library(tokenizer: Tokenizer, length: int) -> Callable[[str], Sequence[int]]:
    reader = _reader(tokenizer.file)

    def numbers(text: str) -> Sequence[int]:
        # One by one: its threads would be in the way of processes that are forked later.
        ids = reader.encode(text, add_special_tokens=False).ids
        return [_FIRST + number for number in ids[:length]]

    return numbers


def _reader(contents: str) -> Any:
    try:
        import tokenizers  # noqa: PLC0415 - an extra, and not always needed

        reader = tokenizers.Tokenizer.from_str(contents)
    except ImportError as error:
        raise ValueError("it needs tokenizers: pip install 'engram[text]'") from error
    except Exception as error:  # the library has a plain Exception for whatever is wrong
        raise ValueError(f"it is no tokenizer.json: {error}") from error
    reader.no_padding()
    reader.no_truncation()
    return reader
