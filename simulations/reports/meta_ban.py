"""Report of Meta-Ban: total regret in the turns that clients have reported."""

from pathlib import Path

from federation.methods.meta_ban import MetaBan
from server.record import RunRecord
from simulations.reports.base import reports
from simulations.reports.sites import draw_curve, regret_table, show_sites
from strategies import Row

__all__: list[str] = []


@reports(MetaBan.plug_in)
def _show(folder: Path, as_json: bool) -> None:
    show_sites(folder, as_json, lambda found, settings: regret_table(found), _draw)


def _draw(record: RunRecord, found: Row) -> list[str]:
    del found
    rows = record.rows()
    if not rows:  # damaged, which has been warned of
        return []
    labels = {"xlabel": "turns that clients have reported", "ylabel": "cumulative regret"}
    path = record.folder / "regret.png"
    told, regret = ([row[name] for row in rows] for name in ("told", "regret"))
    draw_curve(path, told, regret, "-", labels)
    return [path.name]
