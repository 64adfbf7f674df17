"""Losses of survival: of outputs of a network, and of times with whether they are of an event.

Targets (k, 2) are the time of a row's event, or of its loss, and 1 or 0. Outputs (k, K) are logits
of hazards in K cells of time, the first of which is (0, 1]: probabilities of an event in a cell, of
rows that are alive at its start. Outputs (k, 1) of Cox's model are logarithms of relative hazards.
"""

from typing import TYPE_CHECKING, Final

from engram.core.checks import require

# Listing tasks, or mistyping one, loads no torch.
if TYPE_CHECKING:
    from torch import Tensor

_SHARPNESS: Final = 0.1  # sigma of DeepHit's ranking loss


def log_survival(outputs: "Tensor") -> "Tensor":
    """Returns log probabilities to be alive at the ends of cells, (..., K)."""
    return -_softplus(outputs).cumsum(-1)


def hazard_logits(log_alive: "Tensor") -> "Tensor":
    """Returns the outputs (..., K) of log probabilities to be alive, the inverse of the former."""
    first = log_alive.new_ones(log_alive.shape[-1]).cumsum(0) == 1
    return (log_alive.roll(1, -1).masked_fill(first, 0.0) - log_alive).expm1().log()


def discrete_time(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Negative log-likelihood of each row, (k,) (Gensheimer and Narasimhan 2019).

    A row with an event has survived the cells before it. One that is lost has survived those of
    which it was there for half or more (their Section 2.2).
    """
    time, event = targets[:, :1], targets[:, 1:] > 0
    end = outputs.new_ones(outputs.shape[-1]).cumsum(0)
    survived = (event & (time > end)) | (~event & (time >= end - 0.5))
    hit = event & (time <= end) & ((time > end - 1) | (end == 1))
    # -log(1 - h) and -log h of hazards h with logits z are softplus of z and of -z.
    signs = hit.to(outputs) - survived.to(outputs)
    return (signs.abs() * _softplus(-signs * outputs)).sum(-1)


def _check(targets: "Tensor") -> None:
    right = targets.shape[1:] == (2,)
    require(right, "targets", tuple(targets.shape), "times and events, as of task survival")


def _softplus(z: "Tensor") -> "Tensor":
    found: Tensor = z.logaddexp(z.new_zeros(()))
    return found


def cox(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Negative log partial likelihood of a batch, over its number of events (Cox 1972).

    Those at risk are rows of the batch; ties are Breslow's. It is 0 without an event.
    """
    _check(targets)
    require(outputs.numel() == len(targets), "outputs", tuple(outputs.shape), "one for each row")
    order = targets[:, 0].argsort(descending=True)
    time, event, risk = targets[order, 0], targets[order, 1], outputs.flatten()[order]
    # All rows of a time are at risk together: the sum is that up to the last of them.
    place = event.new_ones(len(event)).cumsum(0).long() - 1
    ends = (time != time.roll(-1)) | (place == len(place) - 1)
    last = place.where(ends, place.new_tensor(len(place))).flip(0).cummin(0).values.flip(0)
    at_risk = risk.logcumsumexp(0).gather(0, last)
    loss: Tensor = (event * (at_risk - risk)).sum() / event.sum().clamp(min=1)
    return loss


def deephit(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """DeepHit's loss of a batch, for a single risk (Lee, Zame, Yoon, van der Schaar 2018).

    The likelihood, and a penalty for pairs of a row with an event in a cell and one that is there
    in a later cell: ``exp((F_j - F_i) / 0.1)`` of their probabilities of an event by the end of the
    first's cell, as a mean over all pairs of rows. Probabilities are those of hazards, which may be
    any, where the paper has a softmax over cells: so outputs mean the same under every loss.
    """
    _check(targets)
    time, event = targets[:, 0], targets[:, 1] > 0
    cell = (time.ceil() - 1).clamp(0, outputs.shape[-1] - 1).long()
    died = 1 - log_survival(outputs).exp()
    by = died[:, cell]  # of row j by the end of the cell of row i, (j, i)
    pairs = event & (cell[:, None] > cell)
    ranks = ((by - by.diagonal()) / _SHARPNESS).exp() * pairs
    loss: Tensor = discrete_time(outputs, targets).mean() + ranks.mean()
    return loss


COX: Final = cox.__name__

PAIRED: Final = {COX: cox, deephit.__name__: deephit}
"""Losses that compare a batch's rows, by name."""
