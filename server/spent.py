"""Epsilon that a run has spent of each client, as far as its server knows."""

from collections import Counter

from federation.errors import Refused
from federation.files import read_json
from federation.settings.protection import ProtectionSettings
from server.record import RunRecord

ASKED = "clients-asked.txt"
"""The file of the clients that were asked, a line a release; see ``server.accountant``."""


def spent_by_client(record: RunRecord) -> dict[int, float]:
    """Returns epsilon of each client that was asked, at the run's ``delta``; empty without privacy.

    Other runs cost a client as well, which its site's ledger knows.

    Raises:
        Refused: The settings, or the file of clients that were asked, are damaged.
    """
    settings = read_json(record.folder / "config.json").get("settings")
    if not isinstance(settings, dict) or settings.get("privacy", "none") == "none":
        return {}
    keys = ProtectionSettings.all_keys()
    e = ProtectionSettings.model_validate({k: v for k, v in settings.items() if k in keys})
    from federation.aggregation import spent  # noqa: PLC0415 - torch, which most runs do not need

    asked: Counter[int] = Counter()
    file = record.folder / ASKED
    if file.is_file():
        try:
            for line in file.read_text().splitlines():
                asked.update(map(int, line.split()))
        except (OSError, ValueError) as error:
            raise Refused(f"{file} is damaged: {error}") from error
    else:
        for row in record.rows():
            asked.update(row.get("cohort", ()))
    return {client: spent(e, count) for client, count in sorted(asked.items())}
