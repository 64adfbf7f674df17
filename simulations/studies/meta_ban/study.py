"""Figures 1 to 4 of the Meta-Ban paper from measured runs, with tables of final values."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from rich.table import Table

from engram.arrays import Array
from simulations.pool import Row
from simulations.studies.figures import COLORS, draw_band, finish, new_table, panels, plus_minus
from simulations.studies.meta_ban.methods import META_BAN, METHODS, RANDOM
from simulations.studies.meta_ban.settings import MetaBanSettings
from simulations.studies.meta_ban.trials import RECOVERY, Found, work
from simulations.studies.meta_ban.worlds import WORLDS
from simulations.studies.study import Report
from simulations.studies.summaries import grouped

__all__ = ["report", "work"]  # what a study's module has

_LOOKS: Final = {"show_edge": False, "pad_edge": False}


def report(settings: MetaBanSettings, found: Found) -> Report:
    """Makes the tables and plots."""
    rows, kinds = summarize(found.done), summarize_runs(found.ablated)
    shown: list[str | Table] = [
        _caption(settings),
        _table(rows),
        in_words(rows),
        *recovery_lines(rows),
    ]
    if kinds:
        shown.append(_ablation_table(kinds, settings.ablation or ""))
    pictures = _draw_all(found.done, found.ablated, settings.ablation or "")
    return Report(shown, {"rows": rows, "ablation": kinds}, pictures)


def _caption(s: MetaBanSettings) -> str:
    over = f"mean ± s.d. over {s.seeds} seeds" if s.seeds > 1 else "one seed"
    return (
        f"{WORLDS[s.world].title}:\n"
        f"regret after {s.rounds} rounds, {over}; milliseconds of a\n"
        "core a round. Each policy has the best setting of as many in two worlds of\n"
        "other seeds. *: the least."
    )


def summarize_runs(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each method and setting, in the order in which they came.

    It has ``method``, ``setting``, ``seeds``, ``regret`` after all rounds, ``sd`` (None for one
    seed), ``ms``, and, if group recovery was measured, each of ``RECOVERY`` in the ``first`` and in
    the ``last`` tenth of rounds.
    """
    return [
        {
            "method": runs[0]["method"],
            "setting": runs[0]["setting"],
            "seeds": len(runs),
            "regret": float(_last(runs).mean()),
            "sd": float(_last(runs).std(ddof=1)) if len(runs) > 1 else None,
            "ms": float(np.mean([run["ms"] for run in runs])),
        }
        | {name: _tenths(runs, name) for name in RECOVERY if name in runs[0]}
        for runs in _alike(done)
    ]


def summarize(done: Sequence[Row]) -> list[Row]:
    """Returns the rows of ``summarize_runs`` for one setting of each method, with two more keys.

    ``of-random`` is the mean regret relative to random play's (None without it, or if that is 0),
    and ``meta-ban-less`` is in how many worlds Meta-Ban has less regret (None without Meta-Ban).
    """
    last = {runs[0]["method"]: _last(runs) for runs in _alike(done)}
    random, own = last.get(RANDOM, np.zeros(1)).mean(), last.get(META_BAN)
    rows = summarize_runs(done)
    for row in rows:
        row["of-random"] = row["regret"] / float(random) if random else None
        row["meta-ban-less"] = None if own is None else int((own < last[row["method"]]).sum())
    return rows


def _alike(done: Sequence[Row]) -> list[list[Row]]:
    """Groups runs that differ only in their seeds."""
    return list(grouped(done, "method", "setting").values())


def _last(runs: Sequence[Row]) -> Array:
    return np.array([run["errors"][-1] for run in runs])


def _tenths(runs: Sequence[Row], name: str) -> dict[str, float]:
    """Returns means over runs, and over the first and the last tenth of rounds."""
    rounds = np.array(runs[0]["rounds"])
    values, widths = np.mean([run[name] for run in runs], axis=0), np.diff(rounds, prepend=0)
    tenth = max(1, rounds[-1] / 10)
    parts = {"first": rounds <= tenth, "last": rounds > rounds[-1] - tenth}
    return {part: float(np.average(values[at], weights=widths[at])) for part, at in parts.items()}


def _table(rows: Sequence[Row]) -> Table:
    """Returns a row for each method; the caption says what is in it."""
    found = new_table(["policy", "setting"], ["regret", "of random", "ms"], **_LOOKS)
    least = min(row["regret"] for row in rows)
    for row in rows:
        regret = plus_minus(row["regret"], row["sd"], 0) + ("*" if row["regret"] == least else "")
        setting = ", ".join(f"{name} {value}" for name, value in row["setting"].items()) or "-"
        ratio, title = plus_minus(row["of-random"], None), METHODS[row["method"]].title
        found.add_row(title, setting, regret, ratio, f"{row['ms']:.2f}")
    return found


def _ablation_table(rows: Sequence[Row], name: str) -> Table:
    """Returns a row for each value of an argument of Meta-Ban."""
    watched = [measure for measure in RECOVERY if measure in rows[0]]
    found = new_table(["Meta-Ban"], ["regret", *watched], **_LOOKS)
    for row in rows:
        value = f"{name} = {row['setting'][name]:g}"
        regret = plus_minus(row["regret"], row["sd"], 0)
        found.add_row(value, regret, *(f"{row[part]['last']:.2f}" for part in watched))
    return found


def recovery_lines(rows: Sequence[Row]) -> list[str]:
    """Says how often Meta-Ban's groups are the true ones, where those are known."""
    return [
        "Meta-Ban's groups, in the first and the last tenth of rounds: "
        + "; ".join(
            f"{text} {row[name]['first']:.2f}, {row[name]['last']:.2f}"
            for name, text in zip(RECOVERY, ("exactly right", "precision", "recall"), strict=True)
        )
        + "."
        for row in rows
        if RECOVERY[0] in row
    ]


def in_words(rows: Sequence[Row]) -> str:
    """Names the policy with the least regret, and compares Meta-Ban with the others by worlds."""
    best = min(rows, key=lambda row: float(row["regret"]))
    text = f"The least regret is that of {METHODS[best['method']].title}."
    own = next((row for row in rows if row["method"] == META_BAN), None)
    others = [row for row in rows if row is not own]
    if own is None or not others:
        return text
    if own is not best and best["regret"] > 0:
        text += f" Meta-Ban's is {own['regret'] / best['regret']:.2f} times as much."
    parts = []
    for count in sorted({row["meta-ban-less"] for row in others}, reverse=True):
        names = (METHODS[row["method"]].title for row in others if row["meta-ban-less"] == count)
        parts.append(f"in {count} than {', '.join(names)}")
    return f"{text} Of {own['seeds']} worlds Meta-Ban has less regret {'; '.join(parts)}."


def _draw_all(done: Sequence[Row], ablation: Sequence[Row], name: str) -> dict[str, bytes]:
    """Plots regret and group recovery against rounds; returns PNGs by file name.

    ``groups.png`` is drawn if groups are known, and ``NAME.png`` for the ablation of an argument.
    """
    curves = [_curve(runs, METHODS[runs[0]["method"]].title) for runs in _alike(done)]
    found = {"regret.png": _draw(curves, "regret")}
    if ablation:
        kinds = [(runs, f"{name} = {runs[0]['setting'][name]:g}") for runs in _alike(ablation)]
        found[f"{name}.png"] = _draw([_curve(*kind) for kind in kinds], "regret")
    watched = [runs for runs in _alike(done) if RECOVERY[0] in runs[0]]
    if watched:
        curves = [_curve(watched[0], measure, of=measure) for measure in RECOVERY]
        found["groups.png"] = _draw(curves, "of groups inferred by Meta-Ban", 1.02)
    return found


class _Curve(NamedTuple):
    title: str
    rounds: Sequence[int]
    values: Array  # shape (seeds, r)


def _curve(runs: Sequence[Row], title: str, of: str = "errors") -> _Curve:
    return _Curve(title, runs[0]["rounds"], np.array([run[of] for run in runs]))


def _draw(curves: Sequence[_Curve], label: str, most: float | None = None) -> bytes:
    """Plots means over seeds, with bands of one standard deviation on either side."""
    figure, (axes,) = panels(1, size=(8.5, 4.8))
    for i, curve in enumerate(curves):
        mean = curve.values.mean(axis=0)
        sd = curve.values.std(axis=0, ddof=1) if len(curve.values) > 1 else np.zeros(len(mean))
        color, style = COLORS[i % len(COLORS)], "-" if i < len(COLORS) else "--"
        line: dict[str, Any] = {"color": color, "ls": style, "label": curve.title}
        draw_band(axes, curve.rounds, mean, mean - sd, mean + sd, **line)
    axes.set(xlabel="round", ylabel=f"{label}: mean of {len(curves[0].values)} seeds, s.d.")
    axes.set_ylim(0, most)
    return finish(figure, axes)
