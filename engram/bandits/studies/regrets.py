"""Regrets of policies in the same worlds: means, and paired differences with intervals."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from engram.bandits.studies.methods import META_BAN, METHODS, RANDOM
from engram.bandits.studies.trials import RECOVERY, at_shares
from engram.core.arrays import Array
from engram.simulations.job_pool import Row
from engram.studies.best_method import REGRETS, Interval, in_words, paired
from engram.studies.summaries import grouped

SHARES: Final = (10, 20, 40, 100)
"""After which shares of the rounds, in %, regrets are shown."""


def alike(done: Sequence[Row]) -> list[list[Row]]:
    """Groups runs that differ only in their seeds."""
    return list(grouped(done, "method", "setting").values())


def simplest_first(rows: Iterable[Row]) -> list[Row]:
    """Sorts rows by how simple their methods are, so that references come first."""
    order = list(METHODS)
    return sorted(rows, key=lambda row: order.index(row["method"]))


def difference(own: Sequence[Row], other: Sequence[Row]) -> list[Interval]:
    """Returns intervals of level 0.95 of how much more regret the first has, at each point.

    Args:
        own: A method's runs.
        other: Another's, in the same worlds in the same order.
    """
    gaps = _curves(own) - _curves(other)
    return [paired(each[:, None], np.zeros((len(each), 1)), 0.0) for each in gaps.T]


def summarize_runs(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each method and setting, in the order in which they came.

    It has ``method``, ``setting``, ``seeds``; ``rounds``, those of ``SHARES``, and ``regrets``
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
            "sd": float(_last(runs).std(ddof=1)) if len(runs) > 1 else None,
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
    """Returns the best policy, if one is shown to be, and Meta-Ban beside each, in words.

    Args:
        rows: Those of ``summarize``, from the simplest method on.
    """
    named = {row["method"]: METHODS[row["method"]].title for row in rows}
    verdict = in_words(
        [
            {
                "method": named[row["method"]],
                "loss": row["regret"],
                "gap-low": row["over-least"].low,
                "reason": None,
            }
            for row in rows
        ],
        REGRETS,
    )
    over = {named[r["method"]]: r["over-meta-ban"] for r in rows if r["method"] != META_BAN}
    if META_BAN not in named or not over:
        return verdict
    last = {name: each[-1] for name, each in over.items()}
    kinds = {
        "less than": [name for name, gap in last.items() if gap.low > 0],
        "more than": [name for name, gap in last.items() if gap.high < 0],
    }
    parts = [f"{how} {', '.join(names)}" for how, names in kinds.items() if names]
    text = f"Meta-Ban regrets {'; '.join(parts)}." if parts else ""
    if near := [name for name, gap in last.items() if not gap.shown]:
        text += f" Meta-Ban and {', '.join(near)} cannot be told apart."
    return f"{verdict} {text.strip()}"


def _points(run: Row) -> list[int]:
    """Returns the numbers of a curve's points at ``SHARES`` of the rounds."""
    wanted = at_shares(run["rounds"][-1], SHARES)
    return [int(point) for point in np.unique(np.searchsorted(run["rounds"], wanted))]


def _curves(runs: Sequence[Row]) -> Array:
    return np.array([run["errors"] for run in runs])


def _last(runs: Sequence[Row]) -> Array:
    return _curves(runs)[:, -1]


def _tenths(runs: Sequence[Row], name: str) -> dict[str, float]:
    """Returns means over runs, and over the first and the last tenth of rounds."""
    rounds = np.array(runs[0]["rounds"])
    values, widths = np.mean([run[name] for run in runs], axis=0), np.diff(rounds, prepend=0)
    tenth = max(1, rounds[-1] / 10)
    parts = {"first": rounds <= tenth, "last": rounds > rounds[-1] - tenth}
    return {part: float(np.average(values[at], weights=widths[at])) for part, at in parts.items()}
