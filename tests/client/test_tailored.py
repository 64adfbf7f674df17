"""Slots that the server makes for each client: through messages, engines, stacks and scores."""

import pytest
import torch

from engram.api import load_run
from engram.client.hosts.local import LocalHost
from engram.client.requests import Request
from engram.core.slots import flat, unflat
from engram.runs.run import Run
from engram.simulations.engine import simulate
from engram.strategies.running.compressed_messages import outgoing
from engram.wire.messages import TRAIN, Question
from engram.wire.wire import ARRAYS, CLIENTS, CONFIG, OWN
from tests.sites.budgets import refusal
from tests.support import assert_same, initial_model, small, trainer

FEDPAC = {"method": "fedpac"}
PFEDHN = {"method": "pfedhn", "server_eta": 0.03}
HEAD = {"head/dense1.weight", "head/dense1.bias"}  # of FedPAC


def after_rounds(tmp_path, **settings):
    """A trainer, and the server's slots after a run."""
    e = small(checkpoint_every=1, **settings)
    simulate(e, tmp_path / "run")
    checkpoint = Run.open(tmp_path / "run").load_checkpoint()
    t = trainer(e)
    start = t.method.server.start
    arrays = checkpoint.state | checkpoint.model
    return t, unflat({n: x for n, x in arrays.items() if n.partition("/")[0] in start}, start)


@pytest.mark.parametrize(
    ("method", "names"), [(FEDPAC, HEAD), (PFEDHN, None)], ids=["fedpac", "pfedhn"]
)
def test_a_message_has_them_by_client_and_no_array_twice(tmp_path, method, names):
    t, server = after_rounds(tmp_path, **method)
    content = outgoing(t.method, server)
    one, other = content({}, [3, 1, 19]), content({}, [2])
    own, rest = one[OWN], one[ARRAYS]
    assert own.keys() == (names or {f"model/{name}" for name in t.learner.network.initial})
    assert not own.keys() & rest.keys()
    assert one[ARRAYS] is other[ARRAYS]
    common, made = (flat(slots) for slots in t.method.server.send(server, [3, 1, 19]))
    assert_same(rest, common)
    for name, leaf in own.items():
        assert leaf.shape == (3, *t.learner.network.initial[name.partition("/")[2]].shape)
        assert torch.equal(leaf, made[name])


def asked(content, clients):
    config = {"server-round": 4, "clients": clients, "combine": False}
    records = {**content, CONFIG: config}
    return Question(1, TRAIN, records)


def test_a_message_without_them_is_refused_in_one_line(tmp_path):
    t, server = after_rounds(tmp_path, **FEDPAC)
    whole = outgoing(t.method, server)({}, [3, 1])
    lacking = {ARRAYS: whole[ARRAYS]}
    odd = {ARRAYS: whole[ARRAYS], OWN: {"head/dense1.weight": ONE}}
    requests = [Request(asked(some, [3, 1]), range(20)) for some in (lacking, odd, whole)]
    no, other, yes = LocalHost(t).train(requests)
    expected = "'own' must hold head/dense1.bias, head/dense1.weight, for each of 2 clients"
    for reply in (no, other):
        assert expected in refusal(reply)
    assert yes.content[CLIENTS]["ids"] == [3, 1]


ONE = torch.zeros(3)


def test_one_that_nobody_expects_is_refused():
    t = trainer(small(method="fedavg"))
    record = {"model/dense0.bias": torch.zeros(1, 8)}
    content = {ARRAYS: flat(initial_model(t)), OWN: record}
    (reply,) = LocalHost(t).train([Request(asked(content, [3]), range(20))])
    assert "'own' must hold nothing, for each of 1 clients, got" in reply.error.reason


def test_common_slots_that_are_not_the_methods_are_refused():
    t = trainer(small(method="fedavg"))
    whole = flat(initial_model(t))
    wrong = {"model/dense0.bias": torch.zeros(5)}
    for arrays in ({"model/dense0.bias": torch.zeros(8)}, whole | wrong, whole | {"b/c": ONE}):
        contents = [{ARRAYS: some} for some in (arrays, whole)]
        asked_for = [
            Request(asked(content, [c]), range(20))
            for content, c in zip(contents, (3, 4), strict=True)
        ]
        reply, fine = LocalHost(t).train(asked_for)
        assert refusal(reply).startswith("array record 'arrays' must hold ")
        assert fine.content[CLIENTS]["ids"] == [4]


@pytest.mark.parametrize("method", [FEDPAC, PFEDHN], ids=["fedpac", "pfedhn"])
def test_clients_that_never_train_have_the_common_model(tmp_path, method):
    e = small(unseen_clients=3, clients_per_round=4, adapt_steps=0, **method)
    results = simulate(e, tmp_path / "run")
    run = load_run(tmp_path / "run")
    one, *others = [run.personal_model(client) for client in results["unseen"]]
    for other in others:
        assert_same(other, one)
