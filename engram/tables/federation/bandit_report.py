"""Report of a bandit of batches: regret against turns, mean over sites."""

from pathlib import Path

from matplotlib.figure import Figure

from engram.compare.reports.base import reports
from engram.compare.reports.sites import draw_curve, regret_table, show_sites
from engram.runs.record import RunRecord
from engram.strategies import Row
from engram.tables.federation.molar_bandit import REGRETS, MolarBandit


def _draw(record: RunRecord, found: Row) -> dict[str, Figure]:
    del found
    rows = [row for row in record.rows() if REGRETS.name in row]
    if not rows:  # damaged, which has been warned of
        return {}
    first = record.config["settings"][f"{MolarBandit.name}.first-batch"]
    turns = [first << (row["round"] - 1) for row in rows]
    labels = {"xlabel": "turn (a dot ends a batch)", "ylabel": REGRETS.metric.meaning}
    regrets = [row[REGRETS.name] for row in rows]
    return {REGRETS.name: draw_curve(turns, regrets, "o-", labels)}


@reports(MolarBandit.plug_in, _draw)
def _show(folder: Path, as_json: bool) -> None:
    show_sites(folder, as_json, lambda found, settings: regret_table(found))
