"""FedAlt. Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. ICML 2022."""

from typing import Annotated

from engram.core.settings import Share, method
from engram.methods.fedrep import FedRep


@method("fedalt", source="Pillutla et al., ICML 2022, LocalAlt", personal="head")
class FedAlt(FedRep):
    """A client trains the part that it keeps, and then the one that is shared."""

    personal_share: Annotated[
        Share, "share of a client's steps in a round, the first ones, for what it keeps"
    ] = 0.5
