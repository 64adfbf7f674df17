"""Report of a bandit of batches: regret against turns, mean over sites."""

from pathlib import Path

from federation.methods.molar_bandit import REGRETS, MolarBandit
from server.record import RunRecord
from simulations.reports.base import reports
from simulations.reports.sites import draw_curve, regret_table, show_sites
from strategies import Row

__all__: list[str] = []


@reports(MolarBandit.plug_in)
def _show(folder: Path, as_json: bool) -> None:
    show_sites(folder, as_json, lambda found, settings: regret_table(found), _draw)


def _draw(record: RunRecord, found: Row) -> list[str]:
    del found
    rows = record.rows()
    if not rows:  # damaged, which has been warned of
        return []
    first = record.config["settings"][f"{MolarBandit.name}.first-batch"]
    turns = [first << (row["round"] - 1) for row in rows]
    labels = {"xlabel": "turn (a dot ends a batch)", "ylabel": REGRETS.metric.meaning}
    path = record.folder / f"{REGRETS.name}.png"
    draw_curve(path, turns, [row[REGRETS.name] for row in rows], "o-", labels)
    return [path.name]
