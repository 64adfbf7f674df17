"""The tokenizer of a federation's texts, fitted or from a file."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from engram.core.standardization import Tokenizer, Tokens
from engram.core.streams import unseen
from engram.data.lazy import Texts
from engram.data.schema.columns import Column
from engram.data.standardize import fitted, in_units
from engram.data.tokenizers import rows_with, tokenizer_from, vocabulary
from engram.settings.errors import Refused, one_line
from engram.settings.files import read_file

if TYPE_CHECKING:
    from engram.data.federated import FederatedData
    from engram.settings.experiment import Experiment

_LARGEST: Final = 2**24  # bytes of a vocabulary's file


def told_words(
    experiment: "Experiment", data: "FederatedData", clients: Iterable[int]
) -> dict[str, int] | None:
    """Returns the words that a node tells, each with its number of training rows.

    Those of a client are the commonest ``vocabulary`` that ``least`` of its training
    rows have. Those of clients that never train are not told, nor where the vocabulary is a file's.
    """
    e, text, x = experiment, experiment.text, data.train.x
    if text is None or text.vocabulary_file or not isinstance(x, Texts):
        return None
    never, total = unseen(e, data.names) | e.withdrawn, Counter[str]()
    for client in clients:
        if client not in never:
            rows = rows_with(x.texts[data.train.rows[client]], text.tokenizer, text.length)
            common = {word: count for word, count in rows.items() if count >= text.least}
            total.update({word: common[word] for word in vocabulary(common, text.vocabulary)})
    return dict(total)


def tokenizer_for(text: Column) -> Callable[[Iterable[Mapping[str, int]]], Tokenizer]:
    """Makes a function that fits the tokenizer of a run to nodes' words.

    It is one from a file, which is read at once; or fitted, and ``Refused`` if nobody tells a word.

    Raises:
        Refused: As for ``read_tokenizer``.
    """
    if text.vocabulary_file is None:
        return partial(_fitted, text)
    found = read_tokenizer(text.vocabulary_file, text.vocabulary)
    return lambda _: found


def _fitted(text: Column, told: Iterable[Mapping[str, int]]) -> Tokenizer:
    total = Counter[str]()
    for words in told:
        total.update(words)
    if not total:
        raise Refused(
            f"no word of {text.name} is in {text.least} training rows of a client: lower "
            f"columns.{text.name}.least of the schema, or set its tokenizer to a file"
        )
    return Tokenizer(cast("Tokens", text.tokenizer), vocabulary(total, text.vocabulary))


def read_tokenizer(path: Path, most: int) -> Tokenizer:
    """Reads a ``tokenizer.json``, or a file of one word a line, of at most ``most`` tokens.

    Raises:
        Refused: It cannot be read, is something else, or is too large.
    """
    library = path.suffix == ".json"
    try:
        contents = read_file(path, most=_LARGEST).decode("utf-8-sig")
        return tokenizer_from(contents, most, library=library)
    except OSError as error:
        wanted = "words, characters or a file"
        raise Refused(f"tokenizer must be {wanted}, got {path}: {error.strerror}") from error
    except ValueError as error:
        raise Refused(f"{path} cannot be the tokenizer: {one_line(str(error))}") from error


def in_fitted_units(experiment: "Experiment", data: "FederatedData") -> "FederatedData":
    """Returns data of all clients with their units, and texts with the tokenizer of the run."""
    data, text = fitted(experiment, data), experiment.text
    if text is None:
        return data
    words = told_words(experiment, data, range(experiment.num_clients)) or {}
    return in_units(data, data.units._replace(text=tokenizer_for(text)([words])))
