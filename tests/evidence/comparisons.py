"""Error rates, power and coverage of a comparison's statistics, by simulation.

``python -m tests.evidence.comparisons PART --draws 1000`` prints the table of a part: ``error`` and
``power`` of simultaneous intervals, ``worse``: coverage of the share of clients that are served
worse than by their own training, ``skewed``: false claims where differences between clients are
lognormal, ``planned``: numbers of seeds that are told where there is no difference, and ``rows``:
coverage of one client's mean loss.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table
from scipy.stats import norm, t

from engram.compare.critical_values import AT, floor_of, of_clients, of_seeds
from engram.compare.differences import gaps_of, needed, share_worse
from engram.scoring.intervals import of_mean

Array = npt.NDArray[np.float64]
Row = tuple[object, ...]

SEEDS: Final = (2, 3, 5, 10)
RULES: Final = ("student", "bootstrap-t", "hall", "johnson")


def _varying(*deviations: tuple[int, float]) -> Array:
    return np.repeat([each for _, each in deviations], [count for count, _ in deviations])


PATTERNS: Final[Mapping[str, Array]] = {
    "12 alike": _varying((12, 1.0)),
    "1 of 12 varies": _varying((1, 1.0), (11, 0.01)),
    "2 of 12 vary": _varying((2, 1.0), (10, 0.01)),
    "3 of 12 vary": _varying((3, 1.0), (9, 0.01)),
    "6 of 12 vary": _varying((6, 1.0), (6, 0.01)),
    "1 of 12 by 5 times": _varying((1, 5.0), (11, 1.0)),
    "1 of 12 by 14 times": _varying((1, 14.0), (11, 1.0)),
    "2 of 12 by 14 times": _varying((2, 14.0), (10, 1.0)),
    "12, up to 33 times": np.exp(np.linspace(0, 3.5, 12)),
    "5, up to 33 times": np.exp(np.linspace(0, 3.5, 5)),
}
"""Standard deviations of methods' scores over seeds."""


def crossed(
    rng: np.random.Generator,
    between: Array,
    shape: tuple[int, int, int],
    within: float = 0.0,
    noise: float = 0.3,
) -> Array:
    """Returns scores (draws, methods, seeds, clients) of methods that are alike."""
    (draws, seeds, clients), methods = shape, len(between)
    by_seed = between[:, None, None] * rng.normal(size=(draws, methods, seeds, 1))
    by_client = within * rng.normal(size=(draws, methods, 1, clients))
    both = rng.normal(size=(draws, methods, seeds, clients))
    return np.asarray(by_seed + by_client + noise * both)


def shown(scores: Array) -> npt.NDArray[np.bool_]:
    """Returns the mask of pairs that ``engram.compare.differences`` tells apart, (draws, pairs)."""
    _, methods, seeds, clients = scores.shape
    one, other = pairs = np.array(np.triu_indices(methods, 1))
    means = [scores.mean(axis)[:, one] - scores.mean(axis)[:, other] for axis in (3, 2)]
    by_seeds, by_clients = (each.var(2, ddof=1) / each.shape[2] for each in means)
    by_seeds = np.maximum(by_seeds, floor_of(by_seeds, pairs))
    quantiles = of_seeds(methods, seeds)[AT], of_clients(methods, clients)[AT]
    half = np.hypot(quantiles[0] * by_seeds**0.5, quantiles[1] * by_clients**0.5)
    return np.asarray(np.abs(means[0].mean(2)) > half)


def family_wise(between: Array, seeds: int, draws: int) -> float:
    """Returns the share of comparisons of methods that are alike in which any differ."""
    scores = crossed(np.random.default_rng(0), between, (draws, seeds, 20))
    return float(shown(scores).any(axis=1).mean())


def power(noisy: Sequence[float], draws: int, methods: int = 12, mean: float = 3.0) -> float:
    """Returns the share of comparisons that tell a difference between the first two methods.

    Pairs vary by one point over five seeds; each client by 1.4 points, of 29. The last methods have
    ``noisy`` deviations over seeds; the difference is ``mean``, in points.
    """
    between = np.array([0.5**0.5] * (methods - len(noisy)) + [*noisy])
    scores = crossed(np.random.default_rng(0), between, (draws, 5, 29), within=1.0, noise=2.0)
    scores[:, 0] += mean
    return float(shown(scores)[:, 0].mean())


def worse_coverage(
    share: float, seeds: int, clients: int, between: float, noise: float, draws: int
) -> tuple[float, float]:
    """Returns the coverage of the interval of a share, and its mean width.

    A client is served worse where a sum of normal effects is below a threshold: of the client with
    deviation 1, of the seed with ``between``, of both together with ``noise``.
    """
    rng, covered, width = np.random.default_rng(0), 0, 0.0
    threshold = norm.ppf(share) * (1 + between**2 + noise**2) ** 0.5
    for _ in range(draws):
        effects = rng.normal(size=clients) + between * rng.normal(size=(seeds, 1))
        effects += noise * rng.normal(size=(seeds, clients)) - threshold
        found = share_worse(list(effects), [np.zeros(clients)] * seeds, 1)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= share <= found.high
        width += found.high - found.low
    return covered / draws, width / draws


def skewed_error(methods: int, clients: int, draws: int, sigma: float = 1.0) -> float:
    """Returns the share of comparisons with a false claim, where clients' effects are lognormal.

    All methods but the first have such effects of their own, of mean zero.
    """
    rng = np.random.default_rng(0)
    scores = crossed(rng, np.zeros(methods), (draws, 5, clients), noise=0.1)
    effects = rng.lognormal(0, sigma, (draws, methods - 1, 1, clients)) - np.exp(sigma**2 / 2)
    scores[:, 1:] += effects
    return float(shown(scores).any(axis=1).mean())


def excluded(values: Array, level: float, rng: np.random.Generator) -> dict[str, bool]:
    """Returns by rule whether its interval of a mean excludes zero, at an error of ``level``."""
    n, deviation = len(values), values.std(ddof=1)
    ratio, skewness = values.mean() / deviation, ((values - values.mean()) ** 3).mean()
    skewness /= values.std() ** 3
    quantile, root = t.isf(level / 2, n - 1), n**0.5
    drawn = values[rng.integers(n, size=(2000, n))]
    with np.errstate(divide="ignore", invalid="ignore"):
        ts = (drawn.mean(1) - values.mean()) / drawn.std(1, ddof=1) * root
    low, high = np.quantile(np.nan_to_num(ts), [level / 2, 1 - level / 2])
    hall = ratio + skewness * ratio**2 / 3 + skewness**2 * ratio**3 / 27 + skewness / (6 * n)
    johnson = ratio + skewness / (6 * n) + skewness * ratio**2 / 3
    told = {
        "student": abs(ratio) * root > quantile,
        "bootstrap-t": not low <= ratio * root <= high,
        "hall": abs(hall) * root > quantile,
        "johnson": abs(johnson) * root > quantile,
    }
    return {rule: bool(each) for rule, each in told.items()}


def skewed_rules(methods: int, clients: int, draws: int) -> list[float]:
    """Returns the share of comparisons with a false claim by each of ``RULES``, over clients."""
    rng, wrong = np.random.default_rng(0), np.zeros(len(RULES))
    pairs = np.array(np.triu_indices(methods, 1)).T
    for _ in range(draws):
        effects = np.zeros((methods, clients))
        effects[1:] = rng.lognormal(0, 1, (methods - 1, clients)) - np.exp(0.5)
        each = [excluded(effects[a] - effects[b], 0.05 / len(pairs), rng) for a, b in pairs]
        wrong += [any(found[rule] for found in each) for rule in RULES]
    return [float(each) for each in wrong / draws]


def planned(seeds: int, between: float, within: float, noise: float, draws: int) -> float:
    """Returns the share of pairs of four methods that are alike for which a number is told."""
    told, shape = 0, (draws, seeds, 20)
    for scores in crossed(np.random.default_rng(0), np.full(4, between), shape, within, noise):
        by_name = {str(k): list(each) for k, each in enumerate(scores)}
        told += sum(needed(gap, 4) is not None for gap in gaps_of(by_name).values())
    return told / draws / 6


def rows_coverage(share: float, rows: int, draws: int) -> float:
    """Returns the coverage of one client's mean loss, where a share is 2, the others below 0.1."""
    rng, mean, covered = np.random.default_rng(0), 2 * share + 0.05 * (1 - share), 0
    for _ in range(draws):
        losses = np.where(rng.random(rows) < share, 2.0, 0.1 * rng.random(rows))
        ends = of_mean(losses)
        covered += ends is not None and ends[0] <= mean <= ends[1]
    return covered / draws


def _worse_rows(draws: int) -> list[Row]:
    told: list[Row] = []
    for seeds, between in product(SEEDS[1:], (0.0, 0.5, 1.0, 2.0)):
        cells = product((0.05, 0.1, 0.3, 0.5, 0.8), (10, 20, 100), (0.5, 1.0))
        found = [worse_coverage(p, seeds, n, between, e, draws) for p, n, e in cells]
        coverages, widths = zip(*found, strict=True)
        told.append((seeds, between, min(coverages), np.mean(coverages), np.mean(widths)))
    return told


PARTS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[int], list[Row]]]]] = {
    "error": (
        ("deviations over seeds", *(f"{seeds} seeds" for seeds in SEEDS)),
        lambda draws: [
            (name, *(family_wise(each, seeds, draws) for seeds in SEEDS))
            for name, each in PATTERNS.items()
        ],
    ),
    "power": (
        ("noisy deviation", "11 rows and none", "11 rows and 1", "10 rows and 2"),
        lambda draws: [
            (d, power([], draws, methods=11), power([d], draws), power([d, d], draws))
            for d in (0.0, 5.0, 14.0)
        ],
    ),
    "worse": (
        ("seeds", "seeds' deviation", "least coverage", "mean coverage", "mean width"),
        _worse_rows,
    ),
    "skewed": (
        ("methods", "clients", "compare, 5 seeds", *RULES),
        lambda draws: [
            (m, n, skewed_error(m, n, draws), *skewed_rules(m, n, draws))
            for m, n in product((2, 4), (8, 12, 20, 50, 100))
        ],
    ),
    "planned": (
        ("seeds", "between", "within", "noise", "numbers told"),
        lambda draws: [
            (seeds, *spread, planned(seeds, *spread, draws))
            for seeds, spread in product(
                SEEDS, ((1.0, 0.0, 0.3), (0.0, 1.0, 0.3), (0.3, 1.0, 1.0), (0.0, 0.0, 1.0))
            )
        ],
    ),
    "rows": (
        ("share of large losses", "10 rows", "20", "30", "50", "100"),
        lambda draws: [
            (p, *(rows_coverage(p, n, draws) for n in (10, 20, 30, 50, 100)))
            for p in (0.05, 0.1, 0.2, 0.5)
        ],
    ),
}


def main(
    part: Annotated[str, typer.Argument(help=f"One of {', '.join(PARTS)}.")],
    draws: Annotated[int, typer.Option(min=1, help="Draws of each cell.")] = 400,
) -> None:
    """Print a table of rates."""
    heading, rows_of = PARTS[part]
    table = Table(*heading, title=f"{part}: {draws} draws a cell")
    for row in rows_of(draws):
        told: list[Any] = [f"{x:.3f}" if isinstance(x, float) else str(x) for x in row]
        table.add_row(*told)
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
