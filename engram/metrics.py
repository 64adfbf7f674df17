"""What models are scored by, on the rows of each client: metrics, by name.

A metric is known by its range, its direction and its meaning. Messages, the screening of replies,
records, tables and plots treat all alike.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from engram.checks import require

# Listing metrics, or mistyping one, loads no torch.
if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSS", "METRICS", "Metric", "Score", "metric", "named"]

Better = Literal["higher", "lower"]
Score = Callable[["Tensor", "Tensor"], "Tensor | float"]
"""``(outputs (n, ...), targets (n, ...)) -> value``: of a client's rows, or (n,) of each row."""

_S = TypeVar("_S", bound=Score)


class Metric(NamedTuple):
    """A figure that says how well a model does on some rows of a client.

    Attributes:
        name: What it is called: small letters, digits and hyphens.
        score: Computes it from a model's outputs and the targets, which are finite. A model with
            outputs that are not has the worst value of the range.
        low: Lowest possible value.
        high: Highest possible value.
        better: Which values are better.
        meaning: What it is, in a few words.
        percent: Whether people are shown it in percent.
        by_row: Whether ``score`` returns a value for each row; a client's is then their mean.
        partial: Whether some rows have no value, which is NaN: a single class has no AUC.
        most: A finite value above it counts as this one, so that one client, who may say what it
            likes, cannot move a mean over n clients by more than ``most / n``.
    """

    name: str
    score: Score
    low: float = -inf
    high: float = inf
    better: Better = "higher"
    meaning: str = ""
    percent: bool = False
    by_row: bool = False
    partial: bool = True
    most: float = inf

    @property
    def worst(self) -> float:
        """The end of the range that nobody wants."""
        return self.low if self.better == "higher" else self.high

    def to_config(self) -> dict[str, object]:
        """Returns what a record keeps of it: how its values are to be read."""
        return {"better": self.better, "meaning": self.meaning, "percent": self.percent}

    def in_words(self, value: float | None, decimals: int = 2) -> str:
        """Returns a value as people are shown it, percents so exactly; ``-`` for none."""
        if value is None:
            return "-"
        return f"{100 * value:.{decimals}f}" if self.percent else f"{value:.4g}"


METRICS: dict[str, Metric] = {}
"""Every metric, by its name."""

_TAKEN = frozenset({"absent", "bounded", "clients", "cohort", "columns", "delta", "epsilon"}) | {
    *("finished", "ids", "left-out", "loss", "method", "ms", "names", "queries", "round", "rounds"),
    *("runs", "scored", "train-loss"),
}  # other columns of records and tables


def metric(
    *,
    low: float = -inf,
    high: float = inf,
    better: Better = "higher",
    percent: bool = False,
    by_row: bool = False,
    partial: bool = True,
) -> Callable[[_S], _S]:
    """Makes a function known as a metric, by its own name; to be used as a decorator.

    ``top_two`` is called ``top-two`` in settings and tables. Its docstring's first line says what
    it means.

    Args:
        low: Lowest possible value. Values out of the range are refused, whoever sends them.
        high: Highest possible value.
        better: Which values are better, ``higher`` or ``lower``.
        percent: Whether people are shown it in percent.
        by_row: Whether the function returns a value for each row, (n,), rather than one for all.
        partial: Whether the value may be NaN, where a client's rows have none.

    Raises:
        ValueError: If the name or the range is impossible.
    """

    def register(score: _S) -> _S:
        name = getattr(score, "__name__", "").replace("_", "-")
        word = name.isascii() and name.replace("-", "").isalnum() and name == name.lower()
        free = word and name[0].isalpha() and name not in _TAKEN
        require(free, "name of a metric", name, "small letters, and no other column's name")
        require(low < high, "low", low, f"below high = {high:g}")
        require(better in ("higher", "lower"), "better", better, "higher or lower")
        meaning = (score.__doc__ or name).strip().partition("\n")[0].rstrip(".")
        METRICS[name] = Metric(name, score, low, high, better, meaning, percent, by_row, partial)
        return score

    return register


def named(names: Iterable[str]) -> list[Metric]:
    """Returns metrics by their names."""
    return [METRICS[name] for name in names]


@metric(low=0, high=1, percent=True, by_row=True, partial=False)
def accuracy(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Share of rows whose class has the largest output."""
    return (outputs.argmax(dim=-1) == targets).float()


def _negative_log_likelihood(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    return -outputs.log_softmax(dim=-1).gather(-1, targets[:, None]).squeeze(-1)


LOSS = Metric(
    "loss",
    _negative_log_likelihood,
    low=0.0,
    better="lower",
    meaning="mean negative log-likelihood, in nats",
    by_row=True,
    partial=False,
    most=104.0,  # nats: of a probability that float32 cannot tell from 0, below 2^-149
)
"""What classifiers are trained to lower."""
