"""Metrics by name, by which models are scored on each client's rows.

A metric is known by its range, its direction and its meaning. Messages, the screening of replies,
records, tables and plots treat all alike.
"""

from collections.abc import Callable, Iterable
from functools import partial
from math import inf, isfinite, isnan, nan
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from engram import scoring
from engram.core.checks import require
from engram.core.process_modes import Registry
from engram.scoring.survival_losses import log_survival

# Listing metrics, or mistyping one, loads no torch.
if TYPE_CHECKING:
    from torch import Tensor

Targets = Literal["classes", "values", "labels", "tokens", "times"]
"""Type of a row's targets: a class, numbers, zeros and ones, a class for each position, or a time
and whether it is that of an event."""

Better = Literal["higher", "lower"]
Score = Callable[..., "Tensor | float"]
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
        by_row: Whether ``score`` returns a value for each row; a client's is then their mean, of a
            partial metric over the rows that have one.
        partial: Whether some rows have no value, which is NaN: a single class has no AUC.
        most: A finite value above it counts as this one, so that one client, who may say what it
            likes, cannot move a mean over n clients by more than ``most / n``.
        targets: Kinds of targets that it can be computed from; None for any.
        declared: Whether who wrote it says which values are better.
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
    targets: tuple[Targets, ...] | None = None
    declared: bool = True

    @property
    def sign(self) -> int:
        """1 where higher values are better, else -1."""
        return 1 if self.better == "higher" else -1

    @property
    def scale(self) -> int:
        """The factor by which people are shown values."""
        return 100 if self.percent else 1

    @property
    def unit(self) -> str:
        """The unit in the labels of axes, such as " (%)"; empty for none."""
        return " (%)" if self.percent else ""

    @property
    def worst(self) -> float:
        """The end of the range that nobody wants."""
        return self.low if self.better == "higher" else self.high

    @property
    def center(self) -> Literal["mean", "median"]:
        """The figure over clients that picks rounds and settings.

        The mean where the range has two finite ends. Otherwise the median: a single client, who may
        say what it likes, would own a mean, however many other clients there are.
        """
        return "mean" if isfinite(self.low) and isfinite(self.high) else "median"

    def to_config(self) -> dict[str, object]:
        """Returns the metric's description for records."""
        ends = {end: v for end, v in (("low", self.low), ("high", self.high)) if isfinite(v)}
        return {"better": self.better, "meaning": self.meaning, "percent": self.percent, **ends}

    def in_words(self, value: float | None, decimals: int = 2) -> str:
        """Formats a value for people: percents to ``decimals`` places; ``-`` for none."""
        if value is None or isnan(value):
            return "-"
        return f"{100 * value:.{decimals}f}" if self.percent else f"{value:.4g}"

    def with_unit(self, value: float | None, decimals: int = 2) -> str:
        """Returns a value in words, with its unit."""
        return f"{self.in_words(value, decimals)}{' %' if self.percent else ''}"


METRICS: Registry[Metric] = Registry()
"""Every metric, by its name."""

IGNORED: Final = -100
"""A class that counts in no loss of torch's: of pixels, for example, whose class is unknown."""

BINS: Final = 15
"""Bins of confidence, by which calibration is measured."""

BUILT_IN: set[str] = set()
"""The names of those that come with the platform."""

_TAKEN = frozenset({"absent", "bounded", "clients", "cohort", "columns", "delta", "epsilon"}) | {
    *("finished", "ids", "left-out", "loss", "method", "ms", "names", "queries", "round", "rounds"),
    *("runs", "scored", "train-loss", "train-loss-median"),
}  # other columns of records and tables


def metric(
    *,
    low: float = -inf,
    high: float = inf,
    better: Better = "higher",
    percent: bool = False,
    by_row: bool = False,
    partial: bool = True,
    most: float = inf,
    targets: tuple[Targets, ...] | None = None,
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
        most: What a finite value above it counts as: see ``Metric.most``.
        targets: Kinds of targets that it can be computed from: ``classes``, ``values``, ``labels``,
            ``tokens`` or ``times``, as tasks have them; None for any.

    Raises:
        ValueError: If the name or the range is impossible.
    """

    def register(score: _S) -> _S:
        name = name_of(score)
        word = name.isascii() and name.replace("-", "").isalnum() and name == name.lower()
        free = word and name[0].isalpha() and name not in _TAKEN
        require(free, "name of a metric", name, "small letters, and no other column's name")
        own = name not in BUILT_IN
        require(own, "name of a metric", name, "one that no built-in metric has")
        require(low < high, "low", low, f"below high = {high:g}")
        require(better in ("higher", "lower"), "better", better, "higher or lower")
        meaning = (score.__doc__ or name).strip().partition("\n")[0].rstrip(".")
        METRICS[name] = Metric(
            name, score, low, high, better, meaning, percent, by_row, partial, most, targets
        )
        return score

    return register


def fitted(outputs: Any, targets: "Tensor") -> Any:
    """Returns outputs as losses and metrics see them: (k, 1) as (k,) where targets are (k,).

    Without this, torch would compare each row with each other one. It holds likewise for targets
    of more axes, and where the targets have the additional axis. Other outputs stay as they are.
    """
    shape, wanted = getattr(outputs, "shape", None), targets.shape
    if shape is None or shape == wanted:
        return outputs
    single = (*wanted, 1) == shape or (*shape, 1) == wanted
    return outputs.reshape(wanted) if single else outputs


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function, or of an object's class, with ``-`` for ``_``."""
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    return name.replace("_", "-")


def torch_functional() -> Any:
    """``torch.nn.functional``, when it is called: metrics and tasks are listed without torch."""
    from torch.nn import functional  # noqa: PLC0415 - slow to import

    return functional


def named(names: Iterable[str]) -> list[Metric]:
    """Returns metrics by their names."""
    return [METRICS[name] for name in names]


# --- Classes, labels and tokens ------------------------------------------------------------------


@metric(low=0, high=1, percent=True, by_row=True, partial=False, targets=("classes",))
def accuracy(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Share of rows with the largest output at their class."""
    hits = outputs.argmax(dim=1) == targets  # on the second axis, as torch's losses have them
    if hits.ndim == 1:
        return hits.float()
    return hits.flatten(1).sum(1) / (targets != IGNORED).flatten(1).sum(1).clamp(min=1)


@metric(low=0, high=1, percent=True, by_row=True, targets=("tokens",))
def token_accuracy(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Share of positions with the largest output at their token."""
    counted = targets != -1
    hits = (outputs.argmax(dim=-1) == targets) & counted
    return hits.sum(1) / counted.sum(1)


@metric(low=0, high=1, percent=True, by_row=True, partial=False, targets=("labels",))
def label_accuracy(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Share of labels that are on the right side of a probability of a half."""
    return ((outputs > 0) == (targets > 0.5)).float().flatten(1).mean(1)


@metric(low=0, high=1, percent=True, partial=False, targets=("classes",))
def balanced_accuracy(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Mean of the accuracies on the rows of each class that is there."""
    rows = targets.bincount()
    hits = targets.bincount((outputs.argmax(dim=-1) == targets).double())
    return (hits / rows)[rows > 0].mean()


@metric(low=0, high=1, targets=("classes", "labels"))
def f1(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Mean F1 of the classes, or labels, that are there or predicted; none if there are none."""
    scores, actual = _each(outputs, targets)
    if outputs.ndim > targets.ndim:
        _, predicted = _each(outputs, outputs.argmax(dim=-1))
    else:
        predicted = scores > 0.5
    hits, both = (actual & predicted).sum(0), actual.sum(0) + predicted.sum(0)
    return (2 * hits / both)[both > 0].mean()


@metric(low=0, high=1, targets=("classes", "labels"))
def auc(outputs: "Tensor", targets: "Tensor") -> float:
    """Mean area under the ROC curves, of each class or label that some rows have and some lack."""
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - slow to import, not always needed

    scores, actual = _each(outputs, targets)
    mixed = actual.any(0) & ~actual.all(0)
    if not mixed.any():
        return nan
    return float(roc_auc_score(actual[:, mixed].cpu().numpy(), scores[:, mixed].cpu().numpy()))


@metric(low=0, better="lower", most=104.0, targets=("classes", "labels", "tokens"))
def log_loss(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Mean negative log-likelihood of a class, label or token, in nats."""
    functional = torch_functional()
    loss: Tensor
    if outputs.ndim == targets.ndim:
        loss = functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs))
    else:
        flat = outputs.flatten(0, -2), targets.flatten()
        loss = functional.cross_entropy(*flat, ignore_index=-1)
    return loss


# More than any vocabulary has: a model that gives all tokens the same probability does better.
@metric(low=1, better="lower", most=1e6, targets=("tokens",))
def perplexity(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Exponential of the mean negative log-likelihood of a token."""
    return log_loss(outputs.double(), targets).exp()


@metric(low=0, high=2, better="lower", by_row=True, partial=False, targets=("classes", "labels"))
def brier(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Squared error of the probabilities: summed over classes, and halved for two, or a label's."""
    scores, actual = _each(outputs, targets)
    squares = (scores - actual.to(scores)).square().flatten(1)
    alone = outputs.ndim == targets.ndim or outputs.shape[-1] == 2
    return (squares.mean(1) if alone else squares.sum(1)).to(outputs)


@metric(low=0, high=1, better="lower", targets=("classes", "tokens"))
def ece(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Expected calibration error: how far confidence is from accuracy, in 15 bins of confidence."""
    counted = targets != -1
    confidence, predicted = outputs[counted].double().softmax(-1).max(-1)
    gaps = (predicted == targets[counted]).double() - confidence
    bins = (confidence * BINS).ceil().long()  # (0, 1/15], (1/15, 2/15], ...
    return bins.bincount(gaps).abs().sum() / len(gaps)


def _each(outputs: "Tensor", targets: "Tensor") -> "tuple[Tensor, Tensor]":
    """Returns the probabilities and indicators of classes or labels, both (n, k)."""
    if outputs.ndim == targets.ndim:
        return outputs.double().sigmoid(), targets > 0.5
    classes = targets.new_ones(outputs.shape[-1]).cumsum(0) - 1
    return outputs.double().softmax(-1), targets[:, None] == classes


# --- Values --------------------------------------------------------------------------------------


@metric(low=0, better="lower", partial=False, targets=("values",))
def rmse(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Square root of the mean squared error."""
    return (outputs.reshape(targets.shape) - targets).square().mean().sqrt()


@metric(low=0, better="lower", partial=False, targets=("values",))
def mae(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Mean absolute error."""
    return (outputs.reshape(targets.shape) - targets).abs().mean()


@metric(high=1, targets=("values",))
def r2(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Share of the targets' variance that is explained; none where they are all alike."""
    y = targets.double()
    spread = (y - y.mean(0)).square().sum()
    missed = (outputs.reshape(y.shape) - y).square().sum()
    # The mean of equal numbers is rounded, so that their spread is not zero.
    return (1 - missed / spread) if (y != y[:1]).any() else spread * nan


# --- Times ---------------------------------------------------------------------------------------


@metric(low=0, high=1, targets=("times",))
def c_index(outputs: "Tensor", targets: "Tensor") -> float:
    """Share of pairs of rows of which the one with the higher risk has its event first."""
    # Of hazards in cells, the risk is the mean time up to the last, from high to low; in float32,
    # in which the same curve of several rows is the same.
    z = outputs.double()
    risk = z.flatten() if z.shape[-1] == 1 else -log_survival(z).exp().sum(-1).float()
    time, event = targets.double().cpu().numpy().T
    right, pairs = scoring.concordant_pairs(time, event > 0, risk.cpu().numpy())
    return float(right / pairs) if pairs else nan


@metric(low=0, better="lower", most=1.0, targets=("times",))
def integrated_brier(outputs: "Tensor", targets: "Tensor") -> float:
    """Mean over time of the squared error of survival, weighted against losses of rows."""
    cells = min(outputs.shape[-1], int(targets[:, 0].max()))
    if not cells:
        return nan
    survival = log_survival(outputs.double()[:, :cells]).exp()
    survival = torch_functional().pad(survival, (1, 0), value=1.0)  # at the time 0
    times = survival.new_ones(cells + 1).cumsum(0) - 1
    time, event = targets.double().cpu().numpy().T
    errors = scoring.brier_errors(time, event > 0, survival.cpu().numpy(), times.cpu().numpy())
    return float((errors[1:] + errors[:-1]).sum() / 2 / cells / len(time))


INTEGRATED_BRIER: Final = name_of(integrated_brier)

BUILT_IN.update(METRICS)
