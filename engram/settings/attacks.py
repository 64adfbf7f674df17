"""Settings of attacks on a simulation."""

from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from engram.core.checks import Fault, clash, must
from engram.settings.errors import Refused
from engram.settings.fields import Float, Settings, choice_with_number, number_in

_ATTACKS: Final = {"none": 0.0} | dict.fromkeys(
    [
        *("sign-flip", "scaled", "alie", "ipm", "label-flip", "backdoor"),
        *("false-rows", "false-statistics", "false-scores"),
    ],
    1e6,
)


class AttackSettings(Settings):
    """Attacks, in simulations alone."""

    attack: Annotated[str, AfterValidator(choice_with_number(**_ATTACKS))] = Field(
        "none",
        description="what attackers do, in a simulation that measures how much harm it does, and "
        "after a colon how many times as far their updates go (sign-flip:60): see the "
        "documentation's page on robustness",
    )
    attackers: Float = Field(
        0.2,
        ge=0,
        le=0.5,
        description="share of the clients that attack, which the seed draws",
    )

    @property
    def attack_kind(self) -> str:
        """The attack, without its scale."""
        return self.attack.partition(":")[0]

    @property
    def attack_scale(self) -> float:
        """How many times as far as their attack says attackers' updates go."""
        return number_in(self.attack, 1.0)

    def attack_problems(self) -> Iterator[Fault]:
        """Yields settings of attacks that do not go together."""
        if self.attack_kind == "scaled" and self.attack_scale == 1:
            yield clash("attack", self.attack, "scaled:SCALE, where SCALE is not 1")

    def refuse_attack(self) -> None:
        """Refuses attacks where clients are nodes, which Ray's workers are, too.

        Raises:
            Refused: An attack is set.
        """
        if self.attack != "none":
            expected = "none on nodes and on Ray: attacks are for --engine vectorized or sequential"
            raise Refused(must("attack", self.attack, expected))
