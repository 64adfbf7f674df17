"""Federated learning: rules that make a common model good for all, or each client's own good."""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.federated.apfl import apfl as apfl
    from engram.federated.dbe import fed_dbe as fed_dbe
    from engram.federated.fedala import fedala as fedala
    from engram.federated.feddyn import feddyn as feddyn
    from engram.federated.feddyn import feddyn_server as feddyn_server
    from engram.federated.fedem import fedem as fedem
    from engram.federated.fedpac import fedpac_server as fedpac_server
    from engram.federated.fedproto import fedproto as fedproto
    from engram.federated.fedproto import fedproto_server as fedproto_server
    from engram.federated.ifca import ifca as ifca
    from engram.federated.ifca import ifca_server as ifca_server
    from engram.federated.local_only import local_only as local_only
    from engram.federated.pfedhn import pfedhn_server as pfedhn_server
    from engram.federated.proximal import ditto as ditto
    from engram.federated.proximal import fedprox as fedprox
    from engram.federated.proximal import mr_mtl as mr_mtl
    from engram.federated.scaffold import scaffold as scaffold
    from engram.federated.scaffold import scaffold_server as scaffold_server
    from engram.federated.server_optimizers import server_optimizer as server_optimizer

__getattr__, __dir__, __all__ = attach(__name__, __file__)
