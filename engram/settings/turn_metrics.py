"""Base of methods that act in turns: their metric, and reports of several turns."""

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from engram.scoring.metrics import Metric
from engram.scoring.score_columns import LARGEST
from engram.settings.fields import Int

if TYPE_CHECKING:
    from torch import Tensor

LEAST_REPORTED: Final = 8
"""Turns that a node of its own reports together, at least."""

ReportEvery = Annotated[
    Int,
    Field(
        ge=1,
        description="turns that a client reports together, by sums of rewards and regrets; "
        "smaller values reveal more about single turns",
    ),
]


def _regret(played: "Tensor", best: "Tensor") -> "Tensor":
    return (best - played).sum()


REGRET: Final = Metric("regret", _regret, low=0, high=LARGEST, better="lower", partial=False)
"""Sum over turns of what the best arms would have paid more, in expectation, than those played."""
