"""Claims of a comparison: which methods its runs show to be better than which, in words."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from engram.compare.comparison_folder import Runs, is_reference
from engram.compare.differences import (
    LEAST_CLIENTS,
    LEAST_SEEDS,
    Difference,
    Scores,
    gaps_of,
    pairwise,
)
from engram.compare.power import Needed, needed
from engram.compare.report_rows import alone, client_scores, comparable, models_of
from engram.scoring.evaluation import center_key
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import VALIDATION
from engram.strategies.screening import mean_of

_CLIENTS: Final = 100  # as many are enough where differences are no more skewed than this
_SKEWNESS: Final = 1.0


class Claims(NamedTuple):
    """The differences of a comparison, and the rows that a reader asks about first.

    Attributes:
        metric: What is compared.
        best: The row that is best on validation rows.
        means: Mean score of each row on test rows, over clients and seeds.
        pairs: The first row's scores less the second's, of every two rows.
        simple: Rows that no method for federations has made: references, and local models.
        seeds: Number of seeds.
        clients: Number of clients that were scored.
        method: The row that is best on validation rows among those that are not simple; "" if all
            are.
        needed: What it would take to show a difference of ``best`` or ``method`` that is not shown.
        skewness: The largest of their differences between clients, in absolute value.
        common: The row of the reference that serves every client by one model; "" without it.
    """

    metric: Metric
    best: str
    means: Mapping[str, float]
    pairs: Mapping[tuple[str, str], Difference]
    simple: Sequence[str]
    seeds: int
    clients: int
    method: str = ""
    needed: Mapping[tuple[str, str], Needed] = MappingProxyType({})
    skewness: float = 0.0
    common: str = ""

    @property
    def contender(self) -> str:
        """The row that is set beside the strongest simple one."""
        return self.method or self.best

    def better(self, one: str, other: str) -> bool:
        """Whether a row is shown to be better than another one."""
        found = self.pairs[one, other]
        return found.shown and self.metric.sign * found.mean > 0

    @property
    def strongest(self) -> str | None:
        """The simple row with the best mean; None if there is none beside the contender."""
        others = [name for name in self.simple if name != self.contender and name in self.means]
        return max(others, key=lambda name: self.metric.sign * self.means[name], default=None)


def scores_of(
    runs: Runs, metric: Metric, references: Mapping[str, Scores] = MappingProxyType({})
) -> dict[str, Scores]:
    """Returns each client's scores by row: of each model of each method, and the references'.

    Args:
        runs: Finished runs; each is scored in the round that is shown: see ``shown_rounds``.
        metric: Of which scores.
        references: Scores of each client without a network, by name.
    """
    found = {
        label: client_scores(runs[method], metric.name, which)
        for method, label, which in models_of(runs)
    }
    return found | dict(references)


def claims_of(
    runs: Runs,
    rows: Sequence[Mapping[str, Any]],
    metric: Metric,
    references: Mapping[str, Scores] = MappingProxyType({}),
) -> Claims | None:
    """Returns the claims of a comparison on test rows, each run in its shown round.

    Args:
        runs: The runs.
        rows: As ``report_rows`` returns them.
        metric: What is compared.
        references: Scores of each client without a network, by name.

    Returns:
        The claims; None if the finished runs hold out no rows, or are not of the same seeds and
        clients.
    """
    key, runs = center_key(VALIDATION + metric.name, metric), comparable(runs)
    rows = [row for row in rows if row["finished"]]
    if len(rows) < 2 or any(row.get(key) is None for row in rows) or not runs:
        return None
    scores = scores_of(runs, metric, references)
    known = {name: [s[np.isfinite(s)] for s in each] for name, each in scores.items()}
    means = {
        name: mean
        for name, each in known.items()
        if all(s.size for s in each)
        and not np.isnan(mean := float(np.mean([mean_of(metric)(s) for s in each])))
    }
    by_itself = alone(runs)
    simple = [*references, *(label for own, label, _ in models_of(runs) if own == by_itself)]
    order = [str(row["method"]) for row in sorted(rows, key=lambda row: -metric.sign * row[key])]
    method = next((name for name in order if name not in simple), "")
    if not {order[0], method} - {""} <= means.keys():
        return None
    scored = int(np.any([np.isfinite(s) for s in scores[order[0]]], axis=0).sum())
    seeds, pairs = len(scores[order[0]]), pairwise(scores)
    gaps = {pair: gap for pair, gap in gaps_of(scores).items() if {*pair} & {order[0], method}}
    wanted = {
        pair: each
        for (one, other), gap in gaps.items()
        if not pairs[one, other].shown and (each := needed(gap, len(scores)))
        for pair in ((one, other), (other, one))
    }
    baselines = (name for name in runs if is_reference(name) and name not in simple)
    common = next((name for name in baselines if name in means), "")
    skewness = max(abs(gap.skewness) for gap in gaps.values())
    return Claims(
        metric, order[0], means, pairs, simple, seeds, scored, method, wanted, skewness, common
    )


def in_words(claims: Claims) -> list[str]:
    """Returns the answer of a comparison, and then each difference of the best row.

    The answer sets the best method beside the strongest simple reference. Where that shows nothing,
    methods that are better than one model for all come first. A row is called better than another
    one where the interval of their difference excludes zero. All intervals hold together, and over
    clients and seeds like these.
    """
    if claims.seeds < LEAST_SEEDS:
        few = f"one seed shows no difference, whatever it is: {LEAST_SEEDS} seeds are the least, 5"
        return [f"{_described(claims)}; {few} are better"]
    if claims.clients < LEAST_CLIENTS:
        few = f"{claims.clients} clients show no difference: {LEAST_CLIENTS} are the least"
        return [f"{_described(claims)}; {few}"]
    over = f"{claims.clients} clients and {claims.seeds} seeds"
    title = f"  {claims.best}, the best on validation rows, on test rows of {over}:"
    return [_answer(claims), title, *_details(claims), *_cautions(claims)]


def _described(claims: Claims) -> str:
    """Returns whose mean is better, the best method's or the strongest simple reference's."""
    best, simple = claims.contender, claims.strongest
    if simple is None:
        return f"{_named(claims, best)} is the best on validation rows"
    one, other = f"{_named(claims, best)}, {_title(claims)},", _named(claims, simple)
    ahead = claims.metric.sign * (claims.means[best] - claims.means[simple])
    if ahead < 0:
        one, other = f"{other}, the strongest simple reference,", one.removesuffix(",")
    else:
        other += ", the strongest simple reference"
    how = f"is {claims.metric.better} than" if ahead else "is the same as"
    return f"The mean of {one} {how} that of {other}"


def _title(claims: Claims) -> str:
    """Returns what the contender is."""
    method = "" if claims.contender == claims.best else "method "
    return f"the best {method}on validation rows"


def _answer(claims: Claims) -> str:
    """Returns whether any method is better than the strongest simple reference, or than FedAvg."""
    best, simple = claims.contender, claims.strongest
    wins = all(claims.better(best, other) for other in claims.means if other != best)
    if simple is None:
        return _among_methods(claims, wins=wins)
    apart = f"{_named(claims, best)}, {_title(claims)}, is {_apart(claims, best, simple)}"
    reference = f"the strongest simple reference, {_named(claims, simple)}"
    if wins:
        found = f"{_named(claims, best)} is better than all others: "
        return f"{found}{_apart(claims, best, simple)} of {reference}"
    trained = [name for name in claims.means if name not in claims.simple]
    winners = [name for name in (best, *trained) if claims.better(name, simple)]
    if winners:
        names = dict.fromkeys(winners)
        told = [f"{_named(claims, name)}, {_apart(claims, name, simple)}" for name in names]
        return f"Better than {reference}: {'; '.join([*told, *[apart] * (best not in names)])}"
    if claims.better(simple, best):
        all_of_them = all(claims.better(simple, name) for name in trained)
        than = f"all methods: {apart}" if all_of_them else f"the best method: {apart}"
        return f"{_named(claims, simple)}, the strongest simple reference, is better than {than}"
    ahead_of_it = any(claims.metric.sign * claims.pairs[name, simple].mean > 0 for name in trained)
    how = "shown to be better" if ahead_of_it else "better"
    takes = claims.needed.get((best, simple))
    more = f"; {takes} would show such a difference" if takes else ""
    not_seeds = ", more seeds would not" if takes and takes.more_clients else ""
    shown = _over_common(claims)
    return f"{shown}No method is {how} than {reference}: {apart}{more}{not_seeds}"


def _over_common(claims: Claims) -> str:
    """Returns the sentence that a method is better than one model for all; "" if none is."""
    common, rows = claims.common, dict.fromkeys((claims.contender, *claims.means))
    trained = [name for name in rows if common and name not in (common, *claims.simple)]
    winners = [name for name in trained if claims.better(name, common)]
    if not winners:
        return ""
    are = "are" if winners[2:] else "is"
    more = f"; {', '.join(winners[1:])} {are}, too" if winners[1:] else ""
    told = f"{_named(claims, winners[0])}, {_apart(claims, winners[0], common)}{more}"
    return f"Better than one model for all, {_named(claims, common)}: {told}. "


def _among_methods(claims: Claims, *, wins: bool) -> str:
    """Returns the sentence where there is no simple reference."""
    best = claims.contender
    if not wins:
        return f"No method is shown to be the best; {_named(claims, best)} is {_title(claims)}"
    others = [name for name in claims.means if name != best]
    second = max(others, key=lambda name: claims.metric.sign * claims.means[name])
    behind = _apart(claims, second, best)
    return f"{_named(claims, best)} is better than all others; {second} is next, {behind}"


def _named(claims: Claims, name: str) -> str:
    """Returns a row's name, and its mean."""
    return f"{name} ({claims.metric.name} {claims.metric.with_unit(claims.means[name], 1)})"


def _amount(metric: Metric, value: float) -> str:
    return f"{100 * value:.2f}" if metric.percent else f"{value:.4g}"


def _interval(claims: Claims, difference: Difference) -> str:
    ends = sorted(claims.metric.sign * end for end in (difference.low, difference.high))
    return " to ".join(_amount(claims.metric, end) for end in ends)


def _apart(claims: Claims, one: str, other: str) -> str:
    """Returns by how much a row is ahead of another one, or behind it, with the interval."""
    found = claims.pairs[one, other]
    ahead = claims.metric.sign * found.mean >= 0
    shown = found if ahead else found.turned
    points = " points" if claims.metric.percent else ""
    amount = f"{_amount(claims.metric, abs(found.mean))}{points}"
    return f"{amount} {'ahead' if ahead else 'behind'} ({_interval(claims, shown)})"


def _details(claims: Claims) -> list[str]:
    """Returns whom the best row is better and worse than, and from whom nothing tells it apart."""
    points = " points" if claims.metric.percent else ""
    better, worse, alike, few = [], [], [], []
    for name in claims.means:
        if name == claims.best:
            continue
        found = claims.pairs[claims.best, name]
        amount = f"{_amount(claims.metric, abs(found.mean))}{points}"
        if found.clients < LEAST_CLIENTS:
            few.append(f"{name} ({found.clients})")
        elif not found.shown:
            takes = claims.needed.get((claims.best, name), "")
            span = f"{_interval(claims, found)}{points}"
            alike.append(f"{name} ({span}{f'; {takes}' if takes else ''})")
        elif claims.better(claims.best, name):
            better.append(f"{name} by {amount} ({_interval(claims, found)})")
        else:
            worse.append(f"{name} by {amount} ({_interval(claims, found.turned)})")
    told = {
        "it is better than": better,
        "it is worse than": worse,
        "no difference is shown from": alike,
        f"fewer than {LEAST_CLIENTS} clients have the scores of": few,
    }
    return [f"  {words} {'; '.join(names)}" for words, names in told.items() if names]


def _cautions(claims: Claims) -> list[str]:
    """Returns a line where skewed differences between clients may make claims false."""
    if claims.clients >= _CLIENTS and claims.skewness <= _SKEWNESS:
        return []
    return [
        "  more than 5 % of comparisons may make a false claim where differences between "
        f"clients are skewed (here up to {claims.skewness:.1f}) and clients few: of lognormal "
        "differences 13 to 24 % with 8 to 20 clients, 9 to 10 % with 100"
    ]
