"""Sources of rows: the setting ``dataset`` as an object. No other module parses its text."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from engram.core.checks import require

TABLES: Final = ("csv", "xlsx")
"""Kinds of files with a line of names; which of them a file is, its ending says."""

FILES: Final = ("npz", "npy", *TABLES, "images", "leaf", "parquet", "arrow")
"""Kinds of data sets that are files, or folders: KIND:PATH."""

HUB: Final = "hf"
"""Kind of those of the Hugging Face Hub: hf:NAME, or hf:NAME:SUBSET."""

LIBRARY: Final = ("parquet", "arrow", HUB)
"""Kinds that Hugging Face's library reads."""

MEMORY: Final = "memory"
"""Kind of arrays that a caller gives: memory:DIGEST."""

PERMUTED: Final = "permuted"
"""Kind of images whose pixels are in another order: permuted-NAME."""

SPARSE: Final = "sparse"
"""Kind of simulated tables: sparse-FAMILY."""

BUILT_IN: Final = frozenset(
    {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "cifar100-coarse"}
    | {"sparse-linear", "sparse-logistic", "sparse-poisson", "linear-groups", "cosine-groups"}
)
"""Names of data sets that come with the platform."""

DATASETS: Final[dict[str, Callable[..., Any]]] = {}
"""Functions of users that return data, by name."""

_KINDS: Final = ((":", (*FILES, HUB, MEMORY)), ("-", (PERMUTED, SPARSE)))
_F = TypeVar("_F", bound=Callable[..., Any])


def data(function: _F) -> _F:
    """Makes a function known as a data set, by its own name; to be used as a decorator.

    ``two_cities`` is called ``two-cities`` in the setting ``dataset``. The function returns the
    rows of all clients, as ``engram.simulate`` takes them. Or it has one argument, the number of a
    client, and returns the rows ``(x, y)`` of that one: then a node reads those of the clients that
    it hosts, and no others, and ``partition`` must be ``natural``.

    Raises:
        ValueError: If the function has several arguments, or the name is that of a built-in data
            set.
    """
    name = getattr(function, "__name__", "").replace("_", "-")
    require(name not in BUILT_IN, "name of a data set", name, "one that no built-in data set has")
    count = len(inspect.signature(function).parameters)
    require(count <= 1, f"arguments of {name}", count, "none, or one: the number of a client")
    DATASETS[name] = function
    return function


class Source(str):
    """A data set: a text that names it, or rows that are given.

    It is the value of the setting ``dataset``: as text it goes to records, digests and messages,
    and within a process it carries rows that a caller has given.

    Attributes:
        kind: One of ``FILES``, ``hf``, ``memory``, ``permuted`` or ``sparse``; empty of a name.
        place: The text without its kind: a path, a name, a digest, or a family.
        rows: Arrays by the names that an npz file has for them, of kind ``memory``; None of other
            kinds, and of a text that was read from a record.
    """

    kind: str
    place: str
    rows: Mapping[str, Any] | None

    def __new__(cls, text: str, rows: Mapping[str, Any] | None = None) -> Self:
        """Parses the text of the setting."""
        source = super().__new__(cls, text)
        source.kind, source.place = "", text
        for mark, kinds in _KINDS:
            kind, there, place = text.partition(mark)
            if there and kind in kinds and text not in DATASETS:
                source.kind, source.place = kind, place
        source.rows = rows
        return source

    @classmethod
    def of(cls, dataset: str) -> "Source":
        """Returns the value of the setting as a source, with the rows that it carries."""
        return dataset if isinstance(dataset, Source) else cls(dataset)

    @property
    def each(self) -> "list[Source]":
        """The data sets of a text that names several, with commas."""
        return [Source(text) for text in self.split(",")]

    @property
    def unpermuted(self) -> "Source":
        """The data set without another order of pixels."""
        return Source(self.place) if self.kind == PERMUTED else self

    @property
    def function(self) -> Callable[..., Any] | None:
        """The user's function that returns the rows, of a name of such."""
        return DATASETS.get(self)

    @property
    def by_client(self) -> bool:
        """Whether clients are read one by one, by a function of a client's number."""
        function = self.function
        return function is not None and len(inspect.signature(function).parameters) == 1

    @property
    def in_memory(self) -> bool:
        """Whether a caller gives the rows, which no command line can."""
        return self.kind == MEMORY

    @property
    def is_given(self) -> bool:
        """Whether Python gives the rows: arrays of a caller, or a user's function."""
        return self.in_memory or self.function is not None

    @property
    def is_file(self) -> bool:
        """Whether it is a file or a folder of this machine."""
        return self.kind in FILES

    @property
    def has_columns(self) -> bool:
        """Whether it is a kind of table with named columns."""
        return self.kind in (*TABLES, *LIBRARY)

    @property
    def path(self) -> Path:
        """The file or folder; of other kinds, the word for the rows in messages."""
        return Path("data" if self.in_memory else self.place)

    @property
    def short_name(self) -> str:
        """A name without folders; of rows that a caller gives, the word for them."""
        kind, _, path = self.partition(":")
        return "data" if self.in_memory else Path(path).stem if path else kind

    @property
    def described(self) -> str:
        """The data set in words, for reports."""
        return "data given in memory" if self.in_memory else str(self)

    def absolute(self) -> "Source":
        """Returns the same file for processes with other working directories."""
        return Source(f"{self.kind}:{Path(self.place).absolute()}") if self.is_file else self
