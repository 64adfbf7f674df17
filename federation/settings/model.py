"""The network."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from federation.settings.fields import Settings, widths


class ModelSettings(Settings):
    """The network."""

    model: Literal["mlp", "cnn", "linear"] = Field(
        "mlp",
        description="network: mlp (dense layers), cnn (two convolutions, then dense layers) or "
        "linear (softmax regression)",
    )
    hidden: Annotated[str, BeforeValidator(widths)] = Field(
        "40,40", description="widths of the hidden dense layers, with commas"
    )

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        """``hidden`` as numbers."""
        return tuple(int(width) for width in self.hidden.split(",") if width.strip())
