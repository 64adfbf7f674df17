"""Memory-based MAML for personalized federated learning, and the methods it is compared with."""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.meta.bspiderboost import bsgd as bsgd
    from engram.meta.bspiderboost import bspiderboost as bspiderboost
    from engram.meta.meta_gradient import fine_tune as fine_tune
    from engram.meta.moml import moml_v1 as moml_v1
    from engram.meta.moml import moml_v2 as moml_v2
    from engram.meta.nasa import nasa as nasa
    from engram.meta.protonet import protonet as protonet
    from engram.meta.single_node import Episode as Episode
    from engram.meta.single_node import local_moml as local_moml
    from engram.meta.single_node import maml as maml
    from engram.meta.single_node import reptile as reptile

__getattr__, __dir__, __all__ = attach(__name__, __file__)
