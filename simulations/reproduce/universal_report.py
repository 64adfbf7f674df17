"""Regret of learners in settings of all kinds, with how fast it grows: tables and pictures."""

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from simulations.reproduce.report import COLORS, Row, png
from simulations.reproduce.universal import METHODS, SETTINGS

__all__ = ["CAPTION", "curves_csv", "draw_figures", "exponent", "summary", "tables"]

Array = npt.NDArray[np.float64]

CAPTION: Final = """\
Regret after all rounds, mean over seeds, and the power of t with which it grows:
the slope of log regret over log t in the last tenfold of rounds ("-" where it is
not above 0 in all of them). Honest games: the sum of both players' regrets;
dishonest ones: that of one, whose opponent sees its decision and answers with the
worst. Tuned: the scale of steps that was best in hindsight, of powers of 2; "!" marks
one at an end of those tried. "*": the least of its row."""


class _Shown(NamedTuple):
    """A column of tables, and a curve: a method with the steps of its theory, or the best ones."""

    name: str
    method: str
    title: str
    tuned: bool


_SHOWN: Final = tuple(
    _Shown(
        f"{name}-tuned" if tuned else name,
        name,
        f"{method.title} tuned" if tuned else method.title,
        tuned,
    )
    for name, method in METHODS.items()
    for tuned in ((False, True) if len(method.scales) > 1 else (False,))
)


def exponent(rounds: Sequence[int] | Array, regret: Array) -> float | None:
    """Returns the slope of log regret over log t, by least squares where t >= T / 10.

    None if regret is not positive in all of these rounds, or there is but one.
    """
    last = np.asarray(rounds) >= rounds[-1] / 10
    t, r = np.asarray(rounds)[last], regret[last]
    if len(t) < 2 or r.min() <= 0:
        return None
    return float(np.polynomial.polynomial.polyfit(np.log(t), np.log(r), 1)[1])


class _Curve(NamedTuple):
    """What a learner did in a setting.

    Attributes:
        setting: Name of ``SETTINGS``.
        shown: Of which column.
        scale: Of its steps.
        rounds: Where the curve has points.
        regrets: Shape (seeds, r).
    """

    setting: str
    shown: _Shown
    scale: float
    rounds: list[int]
    regrets: Array


def _curves(done: Sequence[Row]) -> Iterator[_Curve]:
    """Yields the curves of a setting and method; that of the best scale where it is tuned."""
    groups: dict[tuple[str, str], dict[float, list[Row]]] = {}
    for row in done:
        tried = groups.setdefault((row["setting"], row["method"]), {})
        tried.setdefault(row["scale"], []).append(row)
    for setting in dict.fromkeys(setting for setting, _ in groups):
        for shown in _SHOWN:
            tried = groups[setting, shown.method]
            found = {s: np.array([row["errors"] for row in rows]) for s, rows in tried.items()}
            scale = min(found, key=lambda s: found[s][:, -1].mean()) if shown.tuned else 1.0
            yield _Curve(setting, shown, scale, tried[scale][0]["rounds"], found[scale])


def summary(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each setting and learner.

    It has ``setting``, ``method``, ``scale``, ``at-end`` (whether that is tuned, and the first or
    last of those that were tried), ``seeds``, ``regret`` after all rounds, ``standard-error`` (None
    for one seed), and ``exponent`` (None where there is none).
    """
    rows: list[Row] = []
    for setting, shown, scale, rounds, regrets in _curves(done):
        last, seeds, tried = regrets[:, -1], len(regrets), METHODS[shown.method].scales
        rows.append(
            {
                "setting": setting,
                "method": shown.name,
                "scale": scale,
                "at-end": shown.tuned and scale in (tried[0], tried[-1]),
                "seeds": seeds,
                "regret": float(last.mean()),
                "standard-error": float(last.std(ddof=1) / seeds**0.5) if seeds > 1 else None,
                "exponent": exponent(rounds, regrets.mean(axis=0)),
            }
        )
    return rows


def tables(rows: Sequence[Row]) -> list[Table]:
    """Returns a table of regrets, and one of exponents; ``CAPTION`` says what is in them."""
    return [_table(rows, "regret", _regret), _table(rows, "exponent", _exponent)]


def _table(rows: Sequence[Row], title: str, cell: Callable[[Row, bool], str]) -> Table:
    found = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    found.add_column("", no_wrap=True)
    for shown in _SHOWN:
        found.add_column(shown.title.replace(" ", "\n"), justify="right", no_wrap=True)
    for setting in dict.fromkeys(row["setting"] for row in rows):
        own = {row["method"]: row for row in rows if row["setting"] == setting}
        least = min(row["regret"] for row in own.values())
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


def curves_csv(done: Sequence[Row]) -> bytes:
    """Returns all curves as a table: mean, least and largest regret over seeds at each round."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["setting", "method", "scale", "round", "mean", "least", "largest"])
    for setting, shown, scale, rounds, regrets in _curves(done):
        columns = (rounds, regrets.mean(axis=0), regrets.min(axis=0), regrets.max(axis=0))
        for values in zip(*(np.asarray(column).tolist() for column in columns), strict=True):
            writer.writerow([setting, shown.name, scale, *values])
    return file.getvalue().encode()


# --- Pictures ------------------------------------------------------------------------------


def draw_figures(done: Sequence[Row]) -> dict[str, bytes]:
    """Draws regret against rounds, on log axes; returns PNGs by the names of their files."""
    found = {}
    for name, game in (("regret.png", False), ("games.png", True)):
        curves = [curve for curve in _curves(done) if SETTINGS[curve.setting].game == game]
        if curves:
            found[name] = _draw(curves)
    return found


def _draw(curves: Sequence[_Curve]) -> bytes:
    settings = list(dict.fromkeys(curve.setting for curve in curves))
    wide = min(4, len(settings))
    high = math.ceil(len(settings) / wide)
    figure = Figure(figsize=(1.8 + 3.2 * wide, 0.4 + 2.7 * high), layout="constrained")
    panels = figure.subplots(high, wide, squeeze=False).ravel()
    for axes in panels[len(settings) :]:
        axes.set_axis_off()
    colors = dict(zip(METHODS, COLORS, strict=False))
    for axes, setting in zip(panels, settings, strict=False):
        for curve in (curve for curve in curves if curve.setting == setting):
            mean = curve.regrets.mean(axis=0)
            axes.plot(
                curve.rounds,
                np.where(mean > 0, mean, np.nan),  # no logarithm, and so a gap
                "--" if curve.shown.tuned else "-",
                lw=2 if curve.shown.name == "universal" else 1.2,
                color=colors[curve.shown.method],
                label=curve.shown.title,
            )
        axes.set(title=SETTINGS[setting].title, xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    seeds = len(curves[0].regrets)
    figure.supxlabel("round (gaps: regret is not above 0)")  # short: there may be one panel
    figure.supylabel(f"regret, mean of {seeds} seeds")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return png(figure)
