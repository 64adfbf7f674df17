"""Report of Meta-Ban: total regret in the turns that clients have reported."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from rich.table import Table

from engram.bandits.federation.bandit_turns import drawn_environment
from engram.bandits.federation.meta_ban import TOTAL, MetaBan
from engram.bandits.linucb import linucb, random_play
from engram.bandits.play import play_policy
from engram.bandits.policy import Policy, batched
from engram.compare.reports.base import reports
from engram.compare.reports.sites import draw_curve, regret_table, show_sites
from engram.core.arrays import Array
from engram.runs.run import Run
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from engram.strategies.running.base import Row

_MOST: Final = 20_000  # turns that references play: some seconds


def _table(found: Row) -> Table:
    """Returns the table of sites, with the rest of nodes that report in one sum."""
    table, each = regret_table(found), found["clients"]
    totals = {"turns": found["told"], "reward": found["reward"], "regret": found["regret"]}
    turns, *sums = (total - sum(each[name]) for name, total in totals.items())
    if turns:
        table.add_row("together", f"{turns:.0f}", *(f"{total:.4g}" for total in sums))
    return table


def _draw(record: Run, found: Row) -> dict[str, Figure]:
    rows = [row for row in record.rows() if {"told", TOTAL.name} <= row.keys()]
    if not rows:  # damaged, which has been warned of
        return {}
    labels = {"xlabel": "turns that clients have reported", "ylabel": TOTAL.meaning}
    told, regret = ([row[name] for row in (*rows, found)] for name in ("told", TOTAL.name))
    others = references(Experiment.from_config(record.settings))
    beside = {title: own[: len(rows)] for title, own in others.items()}
    return {TOTAL.name: draw_curve(told, regret, "-", labels, beside)}


@reports(MetaBan.plug_in, _draw)
def _show(folder: Path, as_json: bool) -> None:
    show_sites(folder, as_json, lambda found, settings: _table(found))


def references(experiment: Experiment) -> Mapping[str, Array]:
    """Plays simple policies in the same turns; returns the regret of each after each turn.

    They are LinUCB for each user alone, with settings that were not tuned, and random play. None
    are played where turns are rows of the clients' tables, or too many, or data are elsewhere.
    """
    if experiment.of(MetaBan).holds_rows(experiment) or experiment.num_rounds > _MOST:
        return {}
    try:
        environment = drawn_environment(experiment)
    except DataError:
        return {}
    simple: dict[str, Policy[Any]] = {
        "LinUCB, one each": linucb(environment.dim, alpha=0.1, lam=1.0),
        "random": random_play(),
    }
    return {
        f"{title}: {regret[-1]:.0f} in the end": regret
        for title, policy in simple.items()
        for regret in play_policy(batched([policy]), [environment], [experiment.seed]).regrets
    }
