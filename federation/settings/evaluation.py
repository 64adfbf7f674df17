"""Settings of evaluation: how models are personalized, and by which metrics they are scored."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from engram.checks import require
from engram.metrics import METRICS
from federation.settings.fields import Float, Int, Settings, nearest


def _metrics(value: object) -> object:
    """Returns names with commas as text; lists of names are natural in Python."""
    if value == "":
        return value
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return value
    names = [str(name).strip() for name in names]
    unknown = next((name for name in names if name not in METRICS), None)
    if unknown is not None:
        known = f"some of {', '.join(METRICS)}, or a plug-in's (--plugin NAME)"
        known += nearest(unknown, METRICS)
        require(False, "metrics", unknown, known)
    require(len(set(names)) == len(names) > 0, "metrics", names, "different names, at least one")
    return ",".join(names)


class EvaluationSettings(Settings):
    """How a model is personalized before it is scored, and by what it is scored."""

    adapt_shots: Int = Field(
        5, ge=1, description="evaluation: test rows that a client personalizes on"
    )
    adapt_steps: Int = Field(10, ge=0, description="evaluation: gradient steps on them")
    adapt_lr: Float = Field(0.02, gt=0, description="evaluation: their step size")
    adapt_optimizer: Literal["sgd", "momentum", "adam", "adamw"] = Field(
        "sgd", description="evaluation: their optimizer"
    )
    metrics: Annotated[str, BeforeValidator(_metrics)] = Field(
        "",
        description="evaluation: metrics besides the loss, with commas, the main one first; empty: "
        "those of the task",
    )
