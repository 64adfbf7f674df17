"""Methods where a setting, or the data, makes them another method; on small networks."""

import pytest
import torch
from torch.testing import assert_close

from engram.core.slot_optimizers import optimizer_of
from engram.methods.apfl import Apfl
from engram.methods.ditto import Ditto
from engram.methods.fedala import FedAla
from engram.methods.fedavg import FedAvg
from engram.methods.fedavgm import FedAvgM
from engram.methods.feddbe import FedDbe
from engram.methods.fedem import FedEm
from engram.methods.fedlc import FedLc
from engram.methods.fednova import FedNova
from engram.methods.fedproto import FedProto
from engram.methods.fedprox import FedProx
from engram.methods.ifca import Ifca
from engram.methods.local import Local
from engram.methods.local_moml import LocalMoml
from engram.methods.moon import Moon
from engram.methods.mr_mtl import MrMtl
from engram.methods.per_fedavg import PerFedAvg
from engram.methods.pfedhn import PFedHn
from tests.methods.problem import ETA, W, average, built, draw, plus, run, served, trained
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
        Moon(mu=0.0),
        FedLc(tau=0.0),
        FedNova(),  # all take as many steps
        FedAvgM(beta=0.0),
        Apfl(alpha=0.0),
        Apfl(alpha=0.6),
        FedAla(weight_share=0.0),
        Ifca(clusters=1),
        FedEm(components=1),
    ]:
        with entry(settings):
            _, server, _ = run(settings, cohorts=cohorts, **OPTIONS)
            assert_close(server.get("model", server.get("model0")), expected, **CLOSE)


def test_ditto_without_its_term_is_fedavg_with_local_models_beside():
    _, server, _ = run(Ditto(lambda_=0.0), **OPTIONS)
    assert_close(server["model"], run(Ditto(lambda_=2.0), **OPTIONS)[1]["model"], **CLOSE)
    assert_close(own_models(Ditto(lambda_=0.0), **OPTIONS), own_models(Local(), **OPTIONS), **CLOSE)


def test_clients_are_served_by_local_models():
    expected = own_models(Local(), **OPTIONS)
    for settings in [MrMtl(lambda_=0.0), FedProto(lambda_=0.0), Apfl(alpha=1.0)]:
        with entry(settings):
            assert_close(own_models(settings, **OPTIONS), expected, **CLOSE)


def test_fedala_serves_the_mixture_of_the_newest_model_and_what_a_client_keeps():
    method, w, v = built(FedAla()), draw(1), draw(2)
    for weight, expected in ((0.0, w), (1.0, v), (0.25, plus(w, 0.25, plus(v, -1.0, w)))):
        a = {n: weight + 0 * x for n, x in W.items()}
        found = method.serve({"model": w}, {"own": v, "weights": a}, True).models[0]
        assert_close(found, expected)


def test_feddbe_with_kappa_zero_and_a_bias_that_rests_is_fedavg():
    method = built(FedDbe(kappa=0.0))
    (phase,) = method.client.phases

    def direction(work, batches):
        directions, work = phase.direction(work, batches)
        return {"model": directions["model"]}, work

    client = method.client._replace(phases=(phase._replace(direction=direction),))
    _, server, memories = run(method._replace(client=client), **OPTIONS)
    assert_close(server["model"], run(FedAvg(), **OPTIONS)[1]["model"], **CLOSE)
    assert not any(kept["bias"]["b"].any() for kept in memories.values())


def test_components_that_are_alike_share_fedavg_s_step_by_weights_that_stay():
    method = built(FedEm(components=2))
    alike = method._replace(server=method.server._replace(start={"model0": W, "model1": W}))
    _, server, memories = run(alike, cohorts=[[1]], steps=1)
    half = average(W, trained(W, 1, 1, steps=[0]))
    assert_close(server, {"model0": half, "model1": half}, **CLOSE)
    assert_close(memories[1]["weights"], torch.tensor([0.5, 0.5]), **CLOSE)


def test_pfedhn_without_embeddings_is_fedavg():
    method = built(PFedHn(layers=0, server_eta=1.0))
    start = method.server.start
    nothing = {"v": torch.zeros_like(start["embeddings"]["v"])}
    method = method._replace(server=method.server._replace(start=start | {"embeddings": nothing}))
    _, server, _ = run(method, cohorts=[[1], [2], [1]])
    expected = run(FedAvg(), cohorts=[[1], [2], [1]])[1]["model"]
    assert_close(server["model"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hessian", ["exact", "first-order", "finite-difference"])
def test_local_moml_with_beta_1_is_per_fedavg_and_forgets(hessian):
    how = {"alpha": 0.2, "eta": ETA, "hessian": hessian}
    forgetful = LocalMoml(**how, beta=1.0, memory="carry")
    method, server, memories = run(forgetful)
    assert method.client.initial_rows == 0
    assert not any(memories.values())
    assert_close(server, run(PerFedAvg(**how))[1], **CLOSE)
