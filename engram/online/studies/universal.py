"""Tables and plots of learners' regret in all settings, and of how fast it grows."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Final, NamedTuple

import numpy as np
from rich.table import Table

from engram.cli.console import new_table
from engram.compare.figures import COLORS, finish, panels
from engram.core.arrays import Array
from engram.online.studies.curvature_games import METHODS, SETTINGS, run_match
from engram.online.studies.settings import UniversalSettings
from engram.scoring.intervals import mean_and_error
from engram.simulations.job_pool import Pool, Row
from engram.studies.study import Report
from engram.studies.summaries import grouped

_CAPTION: Final = """\
Regret after all rounds, mean over seeds, and the power of t with which it grows:
the slope of log regret over log t in the last tenfold of rounds ("-" where it is
not above 0 in all of them). Honest games: the sum of both players' regrets;
dishonest ones: that of one, whose opponent sees its decision and answers with the
worst. Tuned: the scale of steps that was best in hindsight, of powers of 2; "!" marks
one at an end of those tried. "*": the least of its row."""


def work(settings: UniversalSettings, pool: Pool) -> list[Row]:
    """Plays all matches."""
    t, pairs = settings.horizon, product(settings.settings, range(settings.seeds))
    return pool.run({f"{name}-{s}": partial(run_match, name, t, s) for name, s in pairs})


def report(settings: UniversalSettings, done: Sequence[Row]) -> Report:
    """Makes the tables and plots."""
    del settings
    curves, rows = list(_curves(done)), summarize(done)
    files = {}
    for name, game in (("regret.png", False), ("games.png", True)):
        if some := [curve for curve in curves if SETTINGS[curve.setting].game == game]:
            files[name] = _draw(some)
    return Report([_CAPTION, *tables(rows)], {"rows": rows}, files)


class _Shown(NamedTuple):  # a column of tables: a method with its theory's steps, or the best ones
    name: str
    method: str
    title: str
    tuned: bool


_SHOWN: Final = tuple(
    _Shown(f"{name}-tuned", name, f"{method.title} tuned", True)
    if tuned
    else _Shown(name, name, method.title, False)
    for name, method in METHODS.items()
    for tuned in ((False, True) if len(method.scales) > 1 else (False,))
)


class _Curve(NamedTuple):
    setting: str  # name of ``SETTINGS``
    shown: _Shown  # the column that it belongs to
    scale: float  # the factor of its steps
    rounds: list[int]  # where the curve has points
    regrets: Array  # shape (seeds, r)


def _curves(done: Sequence[Row]) -> Iterator[_Curve]:
    """Yields the curve of each setting and column, at the best scale if it is tuned."""
    for (setting,), rows in grouped(done, "setting").items():
        tried = grouped(rows, "method", "scale")
        for shown in _SHOWN:
            found = {
                scale: np.array([row["errors"] for row in rows])
                for (method, scale), rows in tried.items()
                if method == shown.method
            }
            scale = min(found, key=lambda s: found[s][:, -1].mean()) if shown.tuned else 1.0
            yield _Curve(setting, shown, scale, rows[0]["rounds"], found[scale])


def summarize(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each setting and learner.

    It has ``setting``, ``method``, ``scale``, ``at-end`` (whether the scale is tuned, and the first
    or last one tried), ``seeds``, ``regret`` after all rounds, ``standard-error`` (None for one
    seed), and ``exponent``, which may be None.
    """
    rows: list[Row] = []
    for setting, shown, scale, rounds, regrets in _curves(done):
        (last, error), tried = mean_and_error(regrets[:, -1]), METHODS[shown.method].scales
        rows.append(
            {
                "setting": setting,
                "method": shown.name,
                "scale": scale,
                "at-end": shown.tuned and scale in (tried[0], tried[-1]),
                "seeds": len(regrets),
                "regret": float(last),
                "standard-error": None if error is None else float(error),
                "exponent": exponent(rounds, regrets.mean(axis=0)),
            }
        )
    return rows


def exponent(rounds: Sequence[int] | Array, regret: Array) -> float | None:
    """Returns the slope of log regret over log t, by least squares where t >= T / 10.

    None if regret is not positive in all of these rounds, or there is only one.
    """
    last = np.asarray(rounds) >= rounds[-1] / 10
    t, r = np.asarray(rounds)[last], regret[last]
    if len(t) < 2 or r.min() <= 0:
        return None
    return float(np.polynomial.polynomial.polyfit(np.log(t), np.log(r), 1)[1])


def tables(rows: Sequence[Row]) -> list[Table]:
    """Returns the tables of regrets and of exponents."""
    return [_table(rows, "regret", _regret), _table(rows, "exponent", _exponent)]


def _table(rows: Sequence[Row], title: str, cell: Callable[[Row, bool], str]) -> Table:
    headings = [shown.title.replace(" ", "\n") for shown in _SHOWN]
    found = new_table([""], headings, title=title, edge=False)
    for (setting,), some in grouped(rows, "setting").items():
        own = {row["method"]: row for row in some}
        least = min(row["regret"] for row in some)
        cells = [cell(own[shown.name], own[shown.name]["regret"] == least) for shown in _SHOWN]
        found.add_row(SETTINGS[setting].title, *cells)
    return found


def _regret(row: Row, least: bool) -> str:
    regret: float = row["regret"]
    digits = 0 if abs(regret) >= 99.5 else 1 if abs(regret) >= 9.95 else 2
    return f"{regret:.{digits}f}{'!' if row['at-end'] else ''}{'*' if least else ''}"


def _exponent(row: Row, least: bool) -> str:
    del least
    return "-" if row["exponent"] is None else f"{row['exponent']:.2f}"


def _draw(curves: Sequence[_Curve]) -> bytes:
    settings = list(dict.fromkeys(curve.setting for curve in curves))
    wide = min(4, len(settings))
    high = math.ceil(len(settings) / wide)
    figure, all_axes = panels(wide, high, size=(1.8 + 3.2 * wide, 0.4 + 2.7 * high))
    for axes in all_axes[len(settings) :]:
        axes.set_axis_off()
    colors = dict(zip(METHODS, COLORS, strict=False))
    for axes, setting in zip(all_axes, settings, strict=False):
        for curve in (curve for curve in curves if curve.setting == setting):
            mean = curve.regrets.mean(axis=0)
            axes.plot(
                curve.rounds,
                np.where(mean > 0, mean, np.nan),  # a gap where there is no logarithm
                "--" if curve.shown.tuned else "-",
                lw=2 if curve.shown.name == "universal" else 1.2,
                color=colors[curve.shown.method],
                label=curve.shown.title,
            )
        axes.set(title=SETTINGS[setting].title, xscale="log", yscale="log")
    seeds = len(curves[0].regrets)
    figure.supxlabel("round (gaps: regret is not above 0)")  # short: there may be one panel
    figure.supylabel(f"regret, mean of {seeds} seeds")
    return finish(figure, all_axes[0])
