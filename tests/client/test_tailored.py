"""Arrays that the server makes for each client: through messages, engines, stacks and scores."""

import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from client.hosts.local import LocalHost
from client.requests import Request
from engram.tree import part
from federation.aggregation import aggregate_of
from federation.data.federated import model_for
from federation.flower import local_run
from federation.wire import (
    ARRAYS,
    CLIENTS,
    CONFIG,
    OWN,
    REFUSED,
    to_params,
    to_record,
)
from server.record import RunRecord
from simulations.engine import simulate
from simulations.front import load_run
from simulations.testing import check_method
from simulations.tuning.runs import LockStep
from strategies.outgoing import outgoing
from tests.support import assert_same, initial_model, small, trainer

FEDPAC = {"method": "fedpac"}
PFEDHN = {"method": "pfedhn", "server_eta": 0.03}
HEAD = {"dense1.weight", "dense1.bias"}


@pytest.mark.parametrize("method", [FEDPAC, PFEDHN], ids=["fedpac", "pfedhn"])
def test_methods_with_them_keep_the_contract(method):
    check_method(**method, num_clients=8, local_steps=3)


def after_rounds(tmp_path, **settings):
    e = small(checkpoint_every=1, **settings)
    simulate(e, tmp_path / "run")
    checkpoint = RunRecord.open(tmp_path / "run").load_checkpoint()
    t = trainer(e)
    return e, t, checkpoint, aggregate_of(e, network=model_for(e, t.data.kind))


@pytest.mark.parametrize(
    ("method", "names"), [(FEDPAC, HEAD), (PFEDHN, None)], ids=["fedpac", "pfedhn"]
)
def test_a_message_has_them_by_client_and_no_array_twice(tmp_path, method, names):
    _, t, checkpoint, aggregate = after_rounds(tmp_path, **method)
    content = outgoing(aggregate, to_record(checkpoint.model), checkpoint.state)
    one, other = content(ConfigRecord(), [3, 1, 19]), content(ConfigRecord(), [2])
    own, rest = to_params(one[OWN]), to_params(one[ARRAYS])
    names = names or checkpoint.model.keys()
    assert own.keys() == names == t.tailored
    assert rest.keys() == checkpoint.model.keys() - names
    assert one[ARRAYS] is other[ARRAYS]
    made = aggregate.tailored(checkpoint.model, checkpoint.state, [3, 1, 19])
    for name, leaf in own.items():
        assert leaf.shape == (3, *checkpoint.model[name].shape)
        assert torch.equal(leaf, made[name])


@pytest.mark.parametrize("method", [FEDPAC, PFEDHN], ids=["fedpac", "pfedhn"])
def test_clients_are_served_by_them(tmp_path, method):
    e, t, checkpoint, aggregate = after_rounds(tmp_path, **method)
    made = aggregate.tailored(checkpoint.model, checkpoint.state, range(e.num_clients))
    columns = t.evaluate(
        {n: leaf for n, leaf in checkpoint.model.items() if n not in made},
        range(e.num_clients),
        server_round=e.num_rounds,
        tailored=made,
    ).columns
    run = load_run(tmp_path / "run")
    torch.testing.assert_close(
        columns["loss-before"].double(),
        torch.tensor(run.results["clients"]["loss-served"]).double(),
    )
    for client in (0, 7):
        whole = part(checkpoint.model | {name: leaf[client] for name, leaf in made.items()})
        assert_same(run.personal_model(client), whole, atol=1e-6)
        x, y = t.data.test.take(torch.from_numpy(t.data.test.rows[client]))
        loss = torch.nn.functional.cross_entropy(t.learner.model.apply(whole, x), y)
        assert float(columns["loss-before"][client]) == pytest.approx(float(loss), abs=1e-5)


@pytest.mark.parametrize("method", [FEDPAC, PFEDHN], ids=["fedpac", "pfedhn"])
def test_runs_of_a_stack_give_what_they_give_alone(method):
    runs = [small(seed=seed, eta=eta, **method) for seed, eta in ((0, 0.1), (0, 0.3), (1, 0.1))]
    together = LockStep(runs)
    assert len(together.stacks(range(3))) == 1
    together.advance(3, range(3))
    for i, e in enumerate(runs):
        alone = LockStep([e])
        alone.advance(3, [0])
        assert_same(together.members[i].model, alone.members[0].model, atol=1e-5)


def asked(content, clients):
    local_run()
    config = {"server-round": 4, "clients": clients, "combine": False}
    records = {**content.array_records, CONFIG: ConfigRecord(config)}
    return Message(RecordDict(records), dst_node_id=1, message_type=MessageType.TRAIN)


def test_a_message_without_them_is_refused_in_one_line(tmp_path):
    _, t, checkpoint, aggregate = after_rounds(tmp_path, **FEDPAC)
    content = outgoing(aggregate, to_record(checkpoint.model), checkpoint.state)
    whole = content(ConfigRecord(), [3, 1])
    lacking = RecordDict({ARRAYS: whole[ARRAYS]})
    odd = RecordDict({ARRAYS: whole[ARRAYS], OWN: to_record({"dense1.weight": torch.zeros(3)})})
    requests = [Request(asked(some, [3, 1]), range(20)) for some in (lacking, odd, whole)]
    no, other, yes = LocalHost(t).train(requests)
    expected = "'own' must hold dense1.bias, dense1.weight, for each of 2 clients, got {"
    for reply in (no, other):
        assert reply.error.code == REFUSED
        assert expected in reply.error.reason
        assert "\n" not in reply.error.reason
    assert yes.content[CLIENTS]["ids"] == [3, 1]


def test_one_that_nobody_expects_is_refused():
    t = trainer(small(method="fedavg"))
    record = to_record({"dense0.bias": torch.zeros(1, 8)})
    content = RecordDict({ARRAYS: to_record(initial_model(t)), OWN: record})
    (reply,) = LocalHost(t).train([Request(asked(content, [3]), range(20))])
    assert "'own' must hold nothing, for each of 1 clients, got" in reply.error.reason


@pytest.mark.parametrize("method", [FEDPAC, PFEDHN], ids=["fedpac", "pfedhn"])
def test_clients_that_never_train_have_the_common_model(tmp_path, method):
    e = small(unseen_clients=3, clients_per_round=4, adapt_steps=0, **method)
    results = simulate(e, tmp_path / "run")
    run = load_run(tmp_path / "run")
    common = part(run.model)
    for client in results["unseen"]:
        assert_same(run.personal_model(client), common)
