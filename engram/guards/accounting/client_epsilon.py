"""Epsilon that a run has spent of each client, as far as its server knows."""

from collections import defaultdict

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
