"""Claims of a comparison: the differences between methods that its runs show."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from engram.compare.comparison_folder import Runs, is_reference
from engram.compare.differences import (
    LEAST_CLIENTS,
    LEAST_SEEDS,
    Difference,
    Needed,
    Scores,
    gaps_of,
    needed,
    pairwise,
)
from engram.compare.report_rows import alone, client_scores, comparable, models_of
from engram.compare.text_tables import TextTable
from engram.scoring.evaluation import center_key
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import VALIDATION
from engram.strategies.running.screening import mean_of

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

    def gain(self, one: str, other: str) -> Difference:
        """Difference of two rows, positive where the first is better."""
        found = self.pairs[one, other]
        return found if self.metric.sign > 0 else found.turned

    def better(self, one: str, other: str) -> bool:
        """Whether a row is shown to be better than another one."""
        return self.gain(one, other).low > 0

    @property
    def strongest(self) -> str | None:
        """The simple row with the best mean; None if there is none beside the contender."""
        others = [name for name in self.simple if name != self.contender and name in self.means]
        return max(others, key=lambda name: self.metric.sign * self.means[name], default=None)


def scores_of(
    runs: Runs, metric: Metric, references: Mapping[str, Scores] = MappingProxyType({})
) -> dict[str, Scores]:
    """Returns each client's scores by row: of each model of each method, and the references'."""
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


def differences_of(claims: Claims) -> dict[str, Difference]:
    """Gains of the row with the best validation score over each other row; empty for few scores."""
    if claims.seeds < LEAST_SEEDS or claims.clients < LEAST_CLIENTS:
        return {}
    return {name: claims.gain(claims.best, name) for name in claims.means if name != claims.best}


def difference_table(claims: Claims) -> TextTable | None:
    """Returns the table of ``differences_of``; None where there are none."""
    if not (found := differences_of(claims)):
        return None
    metric, best, rows = claims.metric, claims.best, []
    for name, gain in found.items():
        mean, low, high = (metric.in_words(end, 1) for end in gain[:3])
        interval, needed = f"{low} to {high}", str(claims.needed.get((best, name), "-"))
        if gain.clients < LEAST_CLIENTS:
            interval, needed = "-", f"{LEAST_CLIENTS} clients (has {gain.clients})"
        rows.append([name, mean + "†" * (not gain.shown), interval, needed])
    models = len({name for pair in claims.pairs for name in pair})
    legend = {
        "difference": f"how much better {best} is{', in points' * metric.percent}; negative: "
        "worse; †: not significantly different",
        "95 % interval": f"simultaneous 95 % intervals over all pairs of {models} models; clients "
        "and seeds both count as random",
        "needed": "seeds or clients at which 80 % of comparisons would show the difference",
    }
    caution = []
    if claims.clients < _CLIENTS or claims.skewness > _SKEWNESS:
        caution = [
            "caution: more than 5 % of comparisons may err where differences between clients are "
            f"skewed (here up to {claims.skewness:.1f}) and clients few: of lognormal differences "
            "13 to 24 % with 8 to 20 clients, 9 to 10 % with 100"
        ]
    size = f"test rows of {claims.clients} clients and {claims.seeds} seeds"
    title = f"{metric.name.capitalize()}: {best} (best validation score) versus the others, {size}"
    return TextTable(title, ["versus", *legend], rows, legend, caution)


def answer_of(claims: Claims) -> str:
    """Returns the answer of a comparison in a few sentences.

    It sets the method with the best validation score beside the best simple baseline. Where that
    shows nothing, methods that are better than the global model come first. A row beats another one
    where the interval of their difference excludes zero.
    """
    best, simple = claims.contender, claims.strongest
    chosen = "Best validation score" if best == claims.best else "Best method by validation"
    if claims.seeds < LEAST_SEEDS or claims.clients < LEAST_CLIENTS:
        return _without_intervals(claims, chosen)
    wins = all(claims.better(best, other) for other in claims.means if other != best)
    if simple is None:
        return _among_methods(claims, chosen, wins=wins)
    baseline = f"best simple baseline ({simple}, {claims.metric.name} {_score(claims, simple)})"
    apart = f"{_scored(claims, best)}, {_apart(claims, best, simple)}"
    if wins:
        return f"{best} beats all others. Versus the {baseline}: {apart}."
    trained = [name for name in claims.means if name not in claims.simple]
    winners = [name for name in (best, *trained) if claims.better(name, simple)]
    if winners:
        names = [name for name in dict.fromkeys(winners) if name != best]
        told = [f"{_scored(claims, name)}, {_apart(claims, name, simple)}" for name in names]
        told = [apart, *told] if best in winners else told
        more = "" if best in winners else f" {chosen}: {apart}."
        return f"Better than the {baseline}: {'; '.join(told)}.{more}"
    if claims.better(simple, best):
        whom = (
            "all methods" if all(claims.better(simple, n) for n in trained) else "the best method"
        )
        return f"The {baseline} beats {whom}. {chosen}: {apart}."
    takes, more = claims.needed.get((best, simple)), ""
    if takes:
        gap = claims.metric.in_words(abs(claims.pairs[best, simple].mean), 1)
        seeds = "; more seeds do not help" * takes.more_clients
        more = f" Detecting {gap}{' points' * claims.metric.percent} needs {takes}{seeds}."
    return f"{_over_common(claims)}No method beats the {baseline}. {chosen}: {apart}.{more}"


def _without_intervals(claims: Claims, chosen: str) -> str:
    simple = claims.strongest
    named = f"{chosen} ({claims.metric.name}): {_scored(claims, claims.contender)}"
    beside = f"; best simple baseline: {_scored(claims, simple)}" if simple else ""
    few = f"{claims.clients} clients: {LEAST_CLIENTS} are needed"
    if claims.seeds < LEAST_SEEDS:
        few = f"{claims.seeds} seed: {LEAST_SEEDS} are needed, better 5"
    return f"{named}{beside}. No difference can be shown with {few}."


def _among_methods(claims: Claims, chosen: str, *, wins: bool) -> str:
    best = claims.contender
    first = f"{best} ({claims.metric.name} {_score(claims, best)})"
    if not wins:
        return f"No method beats all others. {chosen}: {first}."
    others = [name for name in claims.means if name != best]
    second = max(others, key=lambda name: claims.metric.sign * claims.means[name])
    closest = f"{_scored(claims, second)}, {_apart(claims, second, best)}"
    return f"{first} beats all others. Closest: {closest}."


def _over_common(claims: Claims) -> str:
    """Returns the sentence that methods beat the global model; "" if none does."""
    common, rows = claims.common, dict.fromkeys((claims.contender, *claims.means))
    trained = [name for name in rows if common and name not in (common, *claims.simple)]
    winners = [name for name in trained if claims.better(name, common)]
    if not winners:
        return ""
    first = f"{_scored(claims, winners[0])}, {_apart(claims, winners[0], common)}"
    more = f"; also {', '.join(winners[1:])}" if winners[1:] else ""
    score = f"{common}, {claims.metric.name} {_score(claims, common)}"
    return f"Better than the global model ({score}): {first}{more}. "


def _score(claims: Claims, name: str) -> str:
    return claims.metric.with_unit(claims.means[name], 1)


def _scored(claims: Claims, name: str) -> str:
    return f"{name} {_score(claims, name)}"


def _signed(metric: Metric, value: float) -> str:
    return f"{'+' * (value >= 0)}{metric.in_words(value, 1)}{' points' * metric.percent}"


def _apart(claims: Claims, one: str, other: str) -> str:
    gain = claims.gain(one, other)
    low, high = (claims.metric.in_words(end, 1) for end in (gain.low, gain.high))
    return f"{_signed(claims.metric, gain.mean)} (95 % CI {low} to {high})"
