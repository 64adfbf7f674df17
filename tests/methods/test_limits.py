"""Methods where a setting, or the data, makes them another method; on small networks."""

import pytest
from torch.testing import assert_close

from engram.core.slot_optimizers import optimizer_of
from engram.methods.apfl import Apfl
from engram.methods.fedala import FedAla
from engram.methods.fedavg import FedAvg
from engram.methods.fedem import FedEm
from engram.methods.fedproto import FedProto
from engram.methods.fedprox import FedProx
from engram.methods.ifca import Ifca
from engram.methods.local import Local
from engram.methods.local_moml import LocalMoml
from engram.methods.mr_mtl import MrMtl
from engram.methods.per_fedavg import PerFedAvg
from tests.methods.problem import ETA, run, served
from tests.samples import entry

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
OPTIONS = {"optimizer": optimizer_of("adam", clip=0.3)}


def own_models(settings, **options):
    method, server, memories = run(settings, **options)
    return [served(method, server, memories, c).models[0] for c in sorted(memories)]


def test_the_common_model_is_that_of_fedavg():
    cohorts = [[1], [2], [1]]  # by rows or by clients; of equal rows they are the same
    expected = run(FedAvg(), cohorts=cohorts, **OPTIONS)[1]["model"]
    for settings in [
        FedProx(mu=0.0),
        Apfl(alpha=0.0),
        Apfl(alpha=0.6),
        FedAla(weight_share=0.0),
        Ifca(clusters=1),
        FedEm(components=1),
    ]:
        with entry(settings):
            _, server, _ = run(settings, cohorts=cohorts, **OPTIONS)
            assert_close(server.get("model", server.get("model0")), expected, **CLOSE)


def test_clients_are_served_by_local_models():
    expected = own_models(Local(), **OPTIONS)
    for settings in [MrMtl(lambda_=0.0), FedProto(lambda_=0.0), Apfl(alpha=1.0)]:
        with entry(settings):
            assert_close(own_models(settings, **OPTIONS), expected, **CLOSE)


@pytest.mark.parametrize("hessian", ["exact", "first-order", "finite-difference"])
def test_local_moml_with_beta_1_is_per_fedavg_and_forgets(hessian):
    how = {"alpha": 0.2, "eta": ETA, "hessian": hessian}
    forgetful = LocalMoml(**how, beta=1.0, memory="carry")
    method, server, memories = run(forgetful)
    assert method.client.initial_rows == 0
    assert not any(memories.values())
    assert_close(server, run(PerFedAvg(**how))[1], **CLOSE)
