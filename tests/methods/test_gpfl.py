"""GPFL against its paper's update, with the layers of torch."""

import torch
from torch import nn
from torch.testing import assert_close

from engram.methods.fedper import FedPer
from engram.methods.gpfl import Gpfl
from tests.methods.problem import (
    ETA,
    HEAD,
    STEPS,
    W,
    batch,
    built,
    head,
    in_turn,
    run,
    run_round,
    served,
)

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
LAMBDA, MU = 0.7, 0.2


def ran(settings=Gpfl(lambda_=LAMBDA, mu=MU), **options):  # noqa: B008 - it is frozen
    return run(settings, personal=HEAD, **options)


def halves(valve):
    found = []
    for name in ("gamma", "beta"):
        half = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8))
        names = zip(half.state_dict(), ("weight", "bias", "gain", "offset"), strict=True)
        half.load_state_dict({key: valve[f"{name}.{ours}"] for key, ours in names})
        found.append(half)
    return nn.ModuleList(found)


def valve_of(valve):
    found = {}
    for name, half in zip(("gamma", "beta"), valve, strict=True):
        for leaf, ours in zip(half.parameters(), ("weight", "bias", "gain", "offset"), strict=True):
            found[f"{name}.{ours}"] = leaf.detach()
    return found


def gated(valve, z, v):
    gamma, beta = (half(v) for half in valve)
    return torch.relu(z * (gamma + 1) + beta)


def layers(w):
    first, last = nn.Linear(100, 8), nn.Linear(8, 3)
    first.load_state_dict({"weight": w["dense0.weight"], "bias": w["dense0.bias"]})
    last.load_state_dict({"weight": w["dense1.weight"], "bias": w["dense1.bias"]})
    return first, last


def by_hand(slots, own, counts, client, server_round, steps=STEPS):
    """Returns what a client sends, its head, and the classes that it has counted."""
    first, last = layers(slots["model"] | own)
    known, valve = slots["embeddings"]["e"], halves(slots["valve"])
    table = nn.Embedding.from_pretrained(known.clone(), freeze=False)
    plain = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=ETA)
    decayed = torch.optim.SGD([*table.parameters(), *valve.parameters()], lr=ETA, weight_decay=MU)
    for h in range(steps):
        x, y = batch(client, server_round, h)
        counts = counts + torch.bincount(y, minlength=3)
        own_input = sum(n / counts.sum() * e for n, e in zip(counts, known, strict=True))
        z = torch.relu(first(x))
        mine, common = gated(valve, z, own_input), gated(valve, z, known.mean(0))
        cosines = nn.functional.cosine_similarity(common[:, None], table.weight[None], dim=2)
        away = sum((row - known[c]).norm() for row, c in zip(common, y, strict=True)) / len(y)
        value = nn.functional.cross_entropy(last(mine), y) + LAMBDA * away
        value = value + nn.functional.cross_entropy(cosines, y)
        for optimizer in (plain, decayed):
            optimizer.zero_grad()
        value.backward()
        for optimizer in (plain, decayed):
            optimizer.step()
    model = {"dense0.weight": first.weight, "dense0.bias": first.bias}
    mine = {"dense1.weight": last.weight.detach(), "dense1.bias": last.bias.detach()}
    sent = {
        "model": {n: x.detach() for n, x in model.items()},
        "embeddings": {"e": table.weight.detach()},
        "valve": valve_of(valve),
    }
    return sent, mine, counts


def by_rows(sent):
    """Returns the mean of slots by the rows of the problem's clients."""
    total = sum(10 + client for client in sent)
    return {
        slot: {n: sum((10 + c) * s[slot][n] for c, s in sent.items()) / total for n in x}
        for slot, x in next(iter(sent.values())).items()
    }


def test_gpfl():
    method, server, memories = ran(cohorts=[[1, 4], [1]])
    first = {c: by_hand(method.server.start, head(W), torch.zeros(3), c, 1) for c in (1, 4)}
    common = by_rows({c: sent for c, (sent, _, _) in first.items()})
    sent, own, counts = by_hand(common, *first[1][1:], 1, 2)
    assert_close(server, sent, **CLOSE)
    assert_close(memories[1]["counts"], counts)
    found = served(method, server, memories, 1)
    assert_close(found.models[0], sent["model"] | own, **CLOSE)
    p = counts / counts.sum() @ sent["embeddings"]["e"]
    gamma, beta = (half(p).detach() for half in halves(sent["valve"]))
    assert_close(found.shift, torch.stack([1 + gamma, beta]), **CLOSE)


def test_a_client_that_has_not_trained_is_served_by_the_common_gate():
    method, server, memories = ran(cohorts=[[1, 4]])
    found = served(method, server, memories, 3)
    assert found.tuned
    assert_close(found.models[0], server["model"] | head(W))
    gamma, beta = (half(server["embeddings"]["e"].mean(0)) for half in halves(server["valve"]))
    assert_close(found.shift, torch.stack([1 + gamma, beta]).detach(), **CLOSE)


def test_without_its_terms_the_body_and_head_take_fedper_s_steps():
    """Without gates that do anything, and embeddings that say nothing of classes."""
    method = built(Gpfl(lambda_=0.0, mu=0.0), personal=HEAD)
    start = method.server.start
    still = {n: torch.zeros_like(x) for n, x in start["valve"].items()}
    alike = {"e": torch.ones_like(start["embeddings"]["e"])}
    start = start | {"valve": still, "embeddings": alike}
    server, memories = run_round(method, in_turn, start, {}, 1, [2], steps=1)
    _, expected, known = run(FedPer(), cohorts=[[2]], personal=HEAD, steps=1)
    assert_close(server["model"], expected["model"], **CLOSE)
    assert_close(memories[2]["personal model"], known[2]["personal model"], **CLOSE)


def test_the_distance_moves_the_body_and_the_gates_but_not_the_embeddings():
    _, far, _ = ran(Gpfl(lambda_=5.0, mu=MU), cohorts=[[2]], steps=1)
    _, none, _ = ran(Gpfl(lambda_=0.0, mu=MU), cohorts=[[2]], steps=1)
    assert_close(far["embeddings"], none["embeddings"], **CLOSE)
    assert (far["model"]["dense0.bias"] - none["model"]["dense0.bias"]).abs().max() > 1e-3
    assert (far["valve"]["beta.offset"] - none["valve"]["beta.offset"]).abs().max() > 1e-3


def test_as_many_rows_of_each_class_open_the_common_gate():
    method, server, memories = ran(cohorts=[[1, 4]])
    counts = torch.full((3,), 6.0)
    own = served(method, server, {1: memories[1] | {"counts": counts}}, 1)
    assert_close(own.shift, served(method, server, {}, 0).shift)
