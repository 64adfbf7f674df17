"""Methods that share a part of the network, and leave the other with each client.

Which part stays is the method's ``part``, unless the settings ``personal`` or ``share`` say it.
"""

from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from engram.checks import must
from federation.methods.base import method
from federation.methods.common import CommonModel
from federation.methods.local import COMMON, SERVED
from federation.settings.fields import Float, searched
from federation.settings.shared import SharedSettings

if TYPE_CHECKING:
    from engram.aggregates import Aggregate
    from engram.models import Model
    from federation.methods.local import Parted

__all__ = ["FedAlt", "FedBabu", "FedBn", "FedPer", "FedRep", "LgFedAvg"]


@method
class FedPer(CommonModel):
    """A common body under personal heads."""

    name = "fedper"
    meaning = "fedavg of all layers but the last one, which each client keeps"
    source = "Arivazhagan et al., 2019, Alg. 1 and 2"
    serves = COMMON
    shows = (SERVED,)
    part = "head"


@method
class LgFedAvg(CommonModel):
    """A common head on personal bodies."""

    name = "lg-fedavg"
    meaning = "fedavg of the last layer; each client keeps the others"
    source = "Liang et al., 2020, Alg. 1"
    serves = COMMON
    shows = (SERVED,)
    part = "body"


@method
class FedBabu(CommonModel):
    """A body under a head that is not trained before clients fine-tune."""

    name = "fedbabu"
    meaning = "fedavg under a last layer that stays as it began until clients fine-tune"
    source = "Oh et al., ICLR 2022, Alg. 1"
    shows = (SERVED,)

    def in_parts(self, network: "Model", shared: SharedSettings) -> "Parted":
        """Returns what leaves out a rule's steps of the head."""
        del shared
        import torch

        from engram.federated.parts import without
        from engram.models import check_body, part_of

        names = network.init(torch.Generator())
        head = part_of(network, names, "head")
        check_body(network, names, head)
        return partial(without, names=head)


class _ByClients(CommonModel):
    """FedAvg in whose mean all clients count alike."""

    serves = COMMON
    shows = (SERVED,)

    def aggregate(self, shared: SharedSettings) -> "Aggregate":
        """Builds the server's part."""
        del shared
        from engram.aggregates import mean

        return mean()


@method
class FedBn(_ByClients):
    """A common model with personal batch norm."""

    name = "fedbn"
    meaning = "fedavg of all but batch norm, which each client keeps"
    source = "Li et al., ICLR 2021, Alg. 1"
    part = "norm"


class _InTurn(_ByClients):
    """A method that trains the personal part first, and then the shared one."""

    part = "head"
    least_steps = 2
    unscaled = frozenset({"personal_share"})

    personal_share: Float = Field(
        0.5,
        gt=0,
        lt=1,
        description="share of a client's steps in a round, the first ones, for what it keeps",
        json_schema_extra=searched(0.1, 0.9),
    )

    def in_parts(self, network: "Model", shared: SharedSettings) -> "Parted":
        """Returns what has a rule train the personal part first, and then the shared one."""
        from engram.federated.parts import in_turn

        if not network.personal:
            raise ValueError(must("share", shared.share, f"less than all for {self.name}"))
        return partial(in_turn, names=network.personal, share=self.personal_share)


@method
class FedRep(_InTurn):
    """A common representation under personal heads, trained in turn."""

    name = "fedrep"
    meaning = "a client trains the last layer, which it keeps, and then what is below it"
    source = "Collins et al., ICML 2021, Alg. 1"

    personal_share: Float = Field(
        0.8,
        gt=0,
        lt=1,
        description="share of a client's steps in a round, the first ones, for the head",
        json_schema_extra=searched(0.1, 0.9),
    )


@method
class FedAlt(_InTurn):
    """A shared and a personal part, trained in turn."""

    name = "fedalt"
    meaning = "a client trains the part that it keeps, and then the one that is shared"
    source = "Pillutla et al., ICML 2022, LocalAlt"
