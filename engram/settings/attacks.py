"""Settings of attacks on a simulation."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from engram.core.checks import Fault, clash, must
from engram.settings.errors import Refused
from engram.settings.fields import Float, Settings


class AttackSettings(Settings):
    """Attacks, in simulations alone."""

    attack: Literal[
        "none",
        "sign-flip",
        "scaled",
        "alie",
        "ipm",
        "label-flip",
        "backdoor",
        "false-rows",
        "false-statistics",
        "false-scores",
    ] = Field(
        "none",
        description="what attackers do, in a simulation that measures how much harm it does: see "
        "the documentation's page on robustness",
    )
    attackers: Float = Field(
        0.2,
        ge=0,
        le=0.5,
        description="share of the clients that attack, which the seed draws",
    )
    attack_scale: Float = Field(
        1.0,
        gt=0,
        le=1e6,
        description="how many times as far as their attack says attackers' updates go",
    )

    def attack_problems(self) -> Iterator[Fault]:
        """Yields settings of attacks that do not go together."""
        if self.attack == "scaled" and self.attack_scale == 1:
            yield clash("attack-scale", 1, "another number than 1 where attack is scaled", "attack")

    def refuse_attack(self) -> None:
        """Refuses attacks where clients are nodes, which Ray's workers are, too.

        Raises:
            Refused: An attack is set.
        """
        if self.attack != "none":
            expected = "none on nodes and on Ray: attacks are for --engine vectorized or sequential"
            raise Refused(must("attack", self.attack, expected))
