"""Figures 1 to 4 of the Meta-Ban paper from measured runs, with tables of regrets."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from rich.table import Table

from engram.bandits.studies.environments import ENVIRONMENTS
from engram.bandits.studies.methods import LINEAR, META_BAN, METHODS, RANDOM
from engram.bandits.studies.regrets import (
    alike,
    difference,
    said,
    simplest_first,
    summarize,
    summarize_runs,
)
from engram.bandits.studies.settings import MetaBanSettings
from engram.bandits.studies.trials import RECOVERY, TUNED_ROUNDS, TrialRows, work
from engram.compare.panel_plots import Curve, curve_of, draw_differences, draw_multiples
from engram.simulations.job_pool import Row
from engram.studies.best_method import Interval
from engram.studies.figures import new_table, plus_minus, png
from engram.studies.study import Report

__all__ = ["report", "work"]  # what a study's module has

_LOOKS: Final = {"show_edge": False, "pad_edge": False}


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
    """Returns a row for each method; the caption says what is in it."""
    found = new_table(["policy", "setting"], ["regret", "of random", "ms"], **_LOOKS)
    for row in rows:
        regret = plus_minus(row["regret"], row["sd"], 0)
        setting = ", ".join(f"{name} {value}" for name, value in row["setting"].items()) or "-"
        ratio, title = plus_minus(row["of-random"], None), METHODS[row["method"]].title
        found.add_row(title, setting, regret, ratio, f"{row['ms']:.2f}")
    return found


def _by_round(rows: Sequence[Row]) -> list[str | Table]:
    """Returns a table of regrets by round, and one of paired differences to Meta-Ban's."""
    ends = [str(end) for end in rows[0]["rounds"]]
    regrets = new_table(["policy"], ends, **_LOOKS)
    for row in rows:
        cells = (f"{regret:.0f}" for regret in row["regrets"])
        regrets.add_row(METHODS[row["method"]].title, *cells)
    others = [row for row in rows if row["over-meta-ban"] and row["method"] != META_BAN]
    if not others:
        return ["Mean regret by round:", regrets]
    half = ", ± half the 95 % interval" if rows[0]["seeds"] > 1 else ""
    caption = f"By how much it is above Meta-Ban's in the same worlds (below: -){half}:"
    gaps = new_table(["policy"], ends, **_LOOKS)
    for row in others:
        gaps.add_row(METHODS[row["method"]].title, *map(_told, row["over-meta-ban"]))
    return ["Mean regret by round:", regrets, caption, gaps]


def _told(gap: Interval) -> str:
    half = gap.high - gap.mean
    return f"{round(gap.mean):+d}" + (f" ± {half:.0f}" if np.isfinite(half) else "")


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
    """Returns how often Meta-Ban's groups are the true ones, where those are known, in words."""
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


def _draw_all(done: Sequence[Row], ablation: Sequence[Row], name: str) -> dict[str, bytes]:
    """Plots regret and group recovery against rounds; returns PNGs by file name.

    ``differences.png`` is drawn if there is another policy beside Meta-Ban, ``groups.png`` if
    groups are known, and ``NAME.png`` for the ablation of an argument.
    """
    runs = {each[0]["method"]: each for each in alike(simplest_first(done))}
    found = {"regret.png": _draw({METHODS[name].title: each for name, each in runs.items()})}
    own = runs.pop(META_BAN, None)
    if own and runs:
        gaps = [_gap(METHODS[name].title, each, own) for name, each in runs.items()]
        labels = "round", "regret above Meta-Ban's"
        kind = "mean over worlds, and its 95 % interval:"
        found["differences.png"] = png(draw_differences({"": gaps}, labels, kind=kind))
    if ablation:
        kinds = {f"{name} = {each[0]['setting'][name]:g}": each for each in alike(ablation)}
        found[f"{name}.png"] = _draw(kinds)
    if own and RECOVERY[0] in own[0]:
        found["groups.png"] = _draw(dict.fromkeys(RECOVERY, own), "of Meta-Ban's groups")
    return found


def _gap(title: str, runs: Sequence[Row], own: Sequence[Row]) -> Curve:
    mean, low, high = np.array(difference(runs, own)).T
    limits = (low, high) if np.isfinite(low).all() else (None, None)
    return Curve(title, runs[0]["rounds"], mean, *limits)


def _draw(named: Mapping[str, Sequence[Row]], measure: str = "") -> bytes:
    """Plots each title's runs: their regret, or how well groups are recovered, by a measure."""
    curves = []
    for title, runs in named.items():
        values = np.array([run[title if measure else "errors"] for run in runs])
        curves.append(curve_of(title, runs[0]["rounds"], values))
    references = [METHODS[name].title for name in (LINEAR, RANDOM)]
    figure = draw_multiples(
        {"": curves},
        ("round", measure or "regret"),
        own="mean, and lowest to highest of the worlds",
        marked=[title for title in references if title in named],
        log=not measure,
    )
    return png(figure)
