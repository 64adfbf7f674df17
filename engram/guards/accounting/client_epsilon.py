"""Epsilon that a run has spent of each client, as far as its server knows."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engram.runs.run import Run
from engram.settings.errors import Refused
from engram.settings.experiment import FORMER, Experiment

ASKED = "clients-asked.txt"
"""The file of the clients that were asked, a line a release; see ``accountant``."""


def spent_by_client(record: Run) -> dict[int, float]:
    """Returns epsilon of each client that was asked, at the run's ``delta``.

    It is empty without privacy, and for a run of a network or a loss that is not known here. Where
    it is of single rows, it is that of the fewest rows that a client had; of one whose rounds were
    all lost, nothing is known of its rows, and its epsilon is that of a client with one.

    Other runs cost a client as well, which its site's ledger knows.

    Raises:
        Refused: The settings, or the file of clients that were asked, are damaged.
    """
    rows, file = record.rows(), record.folder / ASKED
    if not file.is_file() and not any("epsilon" in row for row in rows):
        return {}
    settings = record.settings
    try:
        # None of the former settings has a part in what was spent.
        e = Experiment.from_config({k: v for k, v in settings.items() if k not in FORMER})
    except Refused:  # of a network or a loss that only the run's process knows
        return {}
    from engram.guards.accounting.accountant import PrivacyAccountant  # noqa: PLC0415 - torch, which most runs do not need

    least = defaultdict[int, int](lambda: 1)
    for row in rows:
        for client, count in row.get("training-rows", {}).items():
            least[int(client)] = min(count, least.get(int(client), count))
    done = max((row["round"] for row in rows), default=0)
    asked = file if file.is_file() else None
    return PrivacyAccountant(e, done, asked, rows, lambda: least).by_client()


def note_release(file: Path, clients: Iterable[int]) -> None:
    """Writes the clients of a release at the end of a run's file, before they are asked."""
    file.touch(0o600)
    with file.open("a") as lines:
        lines.write(" ".join(map(str, clients)) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


def releases_of(
    rows: Iterable[Mapping[str, Any]], done: int, everyone: Sequence[int]
) -> Sequence[Sequence[int]]:
    """Returns the clients that were asked in rounds, by their metrics; all if these are lost."""
    cohorts = {row["round"]: row["cohort"] for row in rows if "cohort" in row}
    return [cohorts.get(number, everyone) for number in range(1, done + 1)]


def releases_in(file: Path, least: int) -> Sequence[Sequence[int]]:
    """Returns the clients that were asked, release by release, as a run's file has them.

    Raises:
        Refused: It is damaged, or has fewer than ``least`` releases.
    """
    try:
        found = [[*map(int, line.split())] for line in file.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise Refused(f"{file} is damaged: {error}") from error
    if len(found) < least:
        raise Refused(f"{file} is damaged: it has {len(found)} of {least} rounds")
    return found
