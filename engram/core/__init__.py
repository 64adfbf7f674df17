"""The protocol of federated methods, the round, and operations on slots.

Its names here are those that a method's file needs.
"""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.core.checks import clash as clash
    from engram.core.method import Client as Client
    from engram.core.method import Context as Context
    from engram.core.method import FromEach as FromEach
    from engram.core.method import FromMean as FromMean
    from engram.core.method import Method as Method
    from engram.core.method import Neighbors as Neighbors
    from engram.core.method import Network as Network
    from engram.core.method import Objective as Objective
    from engram.core.method import Phase as Phase
    from engram.core.method import Served as Served
    from engram.core.method import Server as Server
    from engram.core.method import Slots as Slots
    from engram.core.method import Update as Update
    from engram.core.settings import Eta as Eta
    from engram.core.settings import Search as Search
    from engram.core.slots import Tally as Tally
    from engram.core.slots import keep_all as keep_all
    from engram.core.slots import kinds_of as kinds_of
    from engram.core.slots import mean_of as mean_of
    from engram.core.slots import or_common as or_common
    from engram.core.slots import over_slots as over_slots
    from engram.core.slots import pick as pick
    from engram.core.slots import replace as replace
    from engram.core.slots import scatter as scatter
    from engram.core.slots import sends as sends
    from engram.core.slots import zeros as zeros
    from engram.core.tree import add_scaled as add_scaled

__getattr__, __dir__, __all__ = attach(__name__, __file__)
