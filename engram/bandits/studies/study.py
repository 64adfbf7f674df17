"""Figures 1 to 4 of the Meta-Ban paper from measured runs, with tables of regrets.

Policies play in the same worlds: means, and paired differences with intervals.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from rich.table import Table

from engram.bandits.studies.environments import ENVIRONMENTS
from engram.bandits.studies.methods import LINEAR, META_BAN, METHODS, RANDOM
from engram.bandits.studies.settings import MetaBanSettings
from engram.bandits.studies.trials import RECOVERY, TUNED_ROUNDS, TrialRows, at_shares, work
from engram.cli.console import new_table, plus_minus
from engram.compare.figures import image_of
from engram.compare.panel_plots import Curve, curve_of, draw_differences, draw_multiples
from engram.core.arrays import Array
from engram.scoring.intervals import Interval, deviation, student
from engram.simulations.job_pool import Row
from engram.studies.study import Report
from engram.studies.summaries import REGRETS, grouped, in_words

__all__ = ["report", "work"]  # what a study's module has

SHARES: Final = (10, 20, 40, 100)
"""After which shares of the rounds, in %, regrets are shown."""


def report(settings: MetaBanSettings, found: TrialRows) -> Report:
    """Makes the tables and plots."""
    rows, kinds = summarize(found.done), summarize_runs(found.ablated)
    ranked = simplest_first(rows)
    shown: list[str | Table] = [_caption(settings), _table(ranked)]
    shown += [*_by_round(ranked), said(ranked), *recovery_lines(rows)]
    if kinds:
        shown.append(_ablation_table(kinds, settings.ablation or ""))
    pictures = _draw_all(found.done, found.ablated, settings.ablation or "")
    return Report(shown, {"rows": rows, "ablation": kinds}, pictures)


def _caption(s: MetaBanSettings) -> str:
    over = f"mean ± s.d. over {s.seeds} seeds" if s.seeds > 1 else "one seed"
    return (
        f"{ENVIRONMENTS[s.world].title}:\n"
        f"regret after {s.rounds} rounds, {over}; milliseconds of a\n"
        "core a round. Each policy has the best setting of as many in two worlds of\n"
        f"other seeds, of {min(s.rounds, TUNED_ROUNDS)} rounds."
    )


def _table(rows: Sequence[Row]) -> Table:
    found = new_table(["policy", "setting"], ["regret", "of random", "ms"], edge=False)
    for row in rows:
        regret = plus_minus(row["regret"], row["sd"], 0)
        setting = ", ".join(f"{name} {value}" for name, value in row["setting"].items()) or "-"
        ratio, title = plus_minus(row["of-random"], None), METHODS[row["method"]].title
        found.add_row(title, setting, regret, ratio, f"{row['ms']:.2f}")
    return found


def _by_round(rows: Sequence[Row]) -> list[str | Table]:
    ends = [str(end) for end in rows[0]["rounds"]]
    regrets = new_table(["policy"], ends, edge=False)
    for row in rows:
        cells = (f"{regret:.0f}" for regret in row["regrets"])
        regrets.add_row(METHODS[row["method"]].title, *cells)
    others = [row for row in rows if row["over-meta-ban"] and row["method"] != META_BAN]
    if not others:
        return ["Mean regret by round:", regrets]
    half = ", ± half the 95 % interval" if rows[0]["seeds"] > 1 else ""
    caption = f"By how much it is above Meta-Ban's in the same worlds (below: -){half}:"
    gaps = new_table(["policy"], ends, edge=False)
    for row in others:
        gaps.add_row(METHODS[row["method"]].title, *map(_told, row["over-meta-ban"]))
    return ["Mean regret by round:", regrets, caption, gaps]


def _told(gap: Interval) -> str:
    half = gap.high - gap.mean
    return f"{round(gap.mean):+d}" + (f" ± {half:.0f}" if np.isfinite(half) else "")


def _ablation_table(rows: Sequence[Row], name: str) -> Table:
    watched = [measure for measure in RECOVERY if measure in rows[0]]
    found = new_table(["Meta-Ban"], ["regret", *watched], edge=False)
    for row in rows:
        value = f"{name} = {row['setting'][name]:g}"
        regret = plus_minus(row["regret"], row["sd"], 0)
        found.add_row(value, regret, *(f"{row[part]['last']:.2f}" for part in watched))
    return found


def recovery_lines(rows: Sequence[Row]) -> list[str]:
    """Words the share of Meta-Ban's groups that are the true ones, where those are known."""
    texts = dict(zip(RECOVERY, ("exactly right", "precision", "recall"), strict=True))
    found = []
    for row in (row for row in rows if RECOVERY[0] in row):
        tenths = [f"{t} {row[n]['first']:.2f}, {row[n]['last']:.2f}" for n, t in texts.items()]
        beginning = "Meta-Ban's groups, in the first and the last tenth of rounds: "
        found.append(f"{beginning}{'; '.join(tenths)}.")
    return found


def _draw_all(done: Sequence[Row], ablation: Sequence[Row], name: str) -> dict[str, bytes]:
    runs = {each[0]["method"]: each for each in alike(simplest_first(done))}
    found = {"regret.png": _draw({METHODS[name].title: each for name, each in runs.items()})}
    own = runs.pop(META_BAN, None)
    if own and runs:
        gaps = [_gap(METHODS[name].title, each, own) for name, each in runs.items()]
        labels = "round", "regret above Meta-Ban's"
        kind = "mean over worlds, and its 95 % interval:"
        found["differences.png"] = image_of(draw_differences({"": gaps}, labels, kind=kind))
    if ablation:
        kinds = {f"{name} = {each[0]['setting'][name]:g}": each for each in alike(ablation)}
        found[f"{name}.png"] = _draw(kinds)
    return found


def _gap(title: str, runs: Sequence[Row], own: Sequence[Row]) -> Curve:
    mean, low, high = np.array(difference(runs, own)).T
    limits = (low, high) if np.isfinite(low).all() else (None, None)
    return Curve(title, runs[0]["rounds"], mean, *limits)


def _draw(named: Mapping[str, Sequence[Row]]) -> bytes:
    references = [METHODS[name].title for name in (LINEAR, RANDOM)]
    figure = draw_multiples(
        {"": [curve_of(title, runs[0]["rounds"], _curves(runs)) for title, runs in named.items()]},
        ("round", "regret"),
        own="mean, and lowest to highest of the worlds",
        marked=[title for title in references if title in named],
        log=True,
    )
    return image_of(figure)


# --- Summaries -----------------------------------------------------------------------------


def alike(done: Sequence[Row]) -> list[list[Row]]:
    """Groups runs that differ only in their seeds."""
    return list(grouped(done, "method", "setting").values())


def simplest_first(rows: Iterable[Row]) -> list[Row]:
    """Sorts rows by how simple their methods are, so that references come first."""
    order = list(METHODS)
    return sorted(rows, key=lambda row: order.index(row["method"]))


def difference(own: Sequence[Row], other: Sequence[Row]) -> list[Interval]:
    """Returns intervals of level 0.95 of the excess regret of runs over others, at each point.

    The others are in the same worlds in the same order.
    """
    return [student(gaps) for gaps in (_curves(own) - _curves(other)).T]


def summarize_runs(done: Sequence[Row]) -> list[Row]:
    """Summarizes runs by method and setting, in the order of their appearance.

    A row has ``method``, ``setting``, ``seeds``; ``rounds``, those of ``SHARES``, and ``regrets``
    after them; ``regret`` after all rounds, its ``sd`` (None for one seed), ``ms``, and, if group
    recovery was measured, each of ``RECOVERY`` in the ``first`` and in the ``last`` tenth of
    rounds.
    """
    return [
        {
            "method": runs[0]["method"],
            "setting": runs[0]["setting"],
            "seeds": len(runs),
            "rounds": [runs[0]["rounds"][point] for point in _points(runs[0])],
            "regrets": _curves(runs).mean(axis=0)[_points(runs[0])].tolist(),
            "regret": float(_last(runs).mean()),
            "sd": deviation(_last(runs)),
            "ms": float(np.mean([run["ms"] for run in runs])),
        }
        | {name: _tenths(runs, name) for name in RECOVERY if name in runs[0]}
        for runs in alike(done)
    ]


def summarize(done: Sequence[Row]) -> list[Row]:
    """Returns the rows of ``summarize_runs`` for one setting of each method, with more keys.

    ``of-random`` is the mean regret relative to random play's (None without it, or if that is 0);
    ``meta-ban-less`` is in how many worlds Meta-Ban has less regret; ``over-meta-ban`` is by how
    much the regret is above Meta-Ban's after each of ``rounds`` (both None without Meta-Ban); and
    ``over-least`` by how much that after all rounds is above the least mean. The last two are
    intervals of level 0.95 over worlds: (mean, lower limit, upper limit).
    """
    runs = {each[0]["method"]: each for each in alike(done)}
    rows = summarize_runs(done)
    random = next((row["regret"] for row in rows if row["method"] == RANDOM), None)
    least = min(rows, key=lambda row: float(row["regret"]))["method"]
    for row in rows:
        own = runs[row["method"]]
        row["of-random"] = row["regret"] / random if random else None
        row["over-least"] = difference(own, runs[least])[-1]
        row |= {"meta-ban-less": None, "over-meta-ban": None}
        if META_BAN in runs:
            over = difference(own, runs[META_BAN])
            row["over-meta-ban"] = [over[point] for point in _points(own[0])]
            row["meta-ban-less"] = int((_last(runs[META_BAN]) < _last(own)).sum())
    return rows


def said(rows: Sequence[Row]) -> str:
    """Words the best policy, if one is shown to be; ``rows`` begin with the simplest method."""
    compared: list[Row] = []
    for row in rows:
        title, low = METHODS[row["method"]].title, row["over-least"].low
        compared.append({"method": title, "loss": row["regret"], "gap-low": low, "reason": None})
    return in_words(compared, REGRETS)


def _points(run: Row) -> list[int]:
    wanted = at_shares(run["rounds"][-1], SHARES)
    return [int(point) for point in np.unique(np.searchsorted(run["rounds"], wanted))]


def _curves(runs: Sequence[Row]) -> Array:
    return np.array([run["errors"] for run in runs])


def _last(runs: Sequence[Row]) -> Array:
    return _curves(runs)[:, -1]


def _tenths(runs: Sequence[Row], name: str) -> dict[str, float]:
    rounds = np.array(runs[0]["rounds"])
    values, widths = np.mean([run[name] for run in runs], axis=0), np.diff(rounds, prepend=0)
    tenth = max(1, rounds[-1] / 10)
    parts = {"first": rounds <= tenth, "last": rounds > rounds[-1] - tenth}
    return {part: float(np.average(values[at], weights=widths[at])) for part, at in parts.items()}
