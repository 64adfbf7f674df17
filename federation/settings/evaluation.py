"""How a model is personalized before it is scored."""

from pydantic import Field

from federation.settings.fields import Float, Int, Settings


class EvaluationSettings(Settings):
    """How a model is personalized before it is scored."""

    adapt_shots: Int = Field(
        5, ge=1, description="evaluation: test rows that a client personalizes on"
    )
    adapt_steps: Int = Field(10, ge=0, description="evaluation: gradient steps on them")
    adapt_lr: Float = Field(0.02, gt=0, description="evaluation: their step size")
