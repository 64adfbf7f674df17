"""Contents of files that Engram has written, checked when they are read again.

Anybody may have changed such a file, or brought a folder from elsewhere. Each kind of file has a
model; what does not fit it is damaged, and said to be.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from engram.settings.errors import Refused, one_line
from engram.settings.fields import Scalar, expect, in_words, key_of
from engram.settings.files import read_json

_LARGEST: Final = 1e150  # of a figure: its square is finite


class Stored(BaseModel):
    """A model of a file's contents; it may have more entries than it names."""

    model_config = ConfigDict(strict=True, extra="allow", alias_generator=key_of)


S = TypeVar("S", bound=Stored)


def _within(name: str) -> str:
    expect(name not in (".", "..") and len(name.encode()) <= 255, "the name of a folder")
    return name


Name = Annotated[str, StringConstraints(pattern=r"^[^/\x00-\x1f]+$"), AfterValidator(_within)]
"""The name of a folder in another one, and not a path that leads out of it."""

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Clients = Annotated[int, Field(ge=1, le=10**6)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Figure = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]


class Settings(Stored):
    """Settings by key, of which those that all readers ask for have their types."""

    __pydantic_extra__: dict[str, Scalar]

    method: str
    dataset: str = ""
    seed: Seed = 0
    num_clients: Clients = 1
    num_rounds: Count = 1


def read_stored(path: Path, kind: type[Stored]) -> dict[str, Any]:
    """Returns the contents of a file of JSON.

    Raises:
        Refused: If the file cannot be read, or does not fit its model.
    """
    contents = read_json(path)
    of_kind(kind, contents, path)
    return contents


def of_kind(kind: type[S], contents: Any, path: Path) -> S:
    """Returns contents of a file as its model.

    Raises:
        Refused: If they do not fit; ``path`` names the file.
    """
    try:
        return kind.model_validate(contents)
    except ValidationError as error:
        first = error.errors()[0]
        where = one_line(".".join(map(str, first["loc"])))
        lacks = first["type"] == "missing"
        why = f"it lacks {where}" if lacks else in_words(where, dict(first))
        raise Refused(f"{path} is damaged: {why}") from error


def fits(kind: type[Stored], contents: Any) -> bool:
    """Whether contents fit a model."""
    try:
        kind.model_validate(contents)
    except ValidationError:
        return False
    return True


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Refuses a folder of files that do not fit together.

    Raises:
        Refused: In place of the error that reading them has raised.
    """
    try:
        yield
    except Refused:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        why = one_line(f"{type(error).__name__}: {error}")
        raise Refused(f"{folder} is damaged: its files do not fit together ({why})") from error
