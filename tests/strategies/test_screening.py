"""Replies that must not touch the model, one by one."""

from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from engram.core.method import Served
from engram.core.method_shapes import Shapes
from engram.core.tree import distance
from engram.guards.merge import merge_of
from engram.guards.noise import secret_noise
from engram.link.flower import local_run
from engram.methods.fedavg import FedAvg
from engram.scoring.tasks import CLASSIFICATION, REGRESSION, loss, task_of
from engram.strategies.reply_border import Rejected, read_reply
from engram.strategies.rounds import Rounds
from engram.strategies.screening import Accepted, Admission
from engram.strategies.train_replies import screen
from engram.wire.wire import to_record
from tests.methods.problem import built
from tests.samples import entry
from tests.support import assert_same, small

MODEL = {"a": torch.zeros(2, 3), "b": torch.zeros(4)}
ASKED, EXAMPLES = [3, 7], {3: 20, 7: 40}
GOOD = {"a": torch.ones(2, 3), "b": torch.full((4,), 2.0)}
FEDAVG = built(FedAvg())


def clients(**change):
    record = {"server-round": 5, "ids": [3, 7], "losses": [0.5, 1.5], "failed": [], "reasons": []}
    return ConfigRecord(
        {key: value for key, value in (record | change).items() if value is not None}
    )


def sent(params):
    return to_record({f"model/{name}": leaf for name, leaf in params.items()})


def merge_by(merge="mean", running=()):
    """The server's merge of FedAvg, of networks with such running statistics."""
    settings = small(method="fedavg", merge=merge)
    return merge_of(settings, FEDAVG, frozenset(running), secret_noise)


def reply(params=None, metrics=None, details=None, error=None):
    local_run()
    query = Message(RecordDict(), dst_node_id=1, message_type="train")
    if error is not None:
        return Message(error, reply_to=query)
    content = RecordDict(
        {
            "arrays": params if isinstance(params, ArrayRecord) else sent(params or GOOD),
            "metrics": MetricRecord({"num-examples": 60} if metrics is None else metrics),
            "clients": clients() if details is None else details,
        }
    )
    return Message(content, reply_to=query)


def verdict(
    message,
    most=10**6,
    losses=True,
    loss=CLASSIFICATION.metric,
    merge="mean",
    running=(),
    model=MODEL,
):
    slots, by = {"model": model}, merge_by(merge, running)
    read = partial(
        screen,
        rounds=Rounds(by, Shapes(FEDAVG, slots, {}, slots, slots, {}, Served((model,)))),
        admission=Admission(by, 5, slots, slots, 5),
        asked=ASKED,
        examples=EXAMPLES,
        most=most,
        loss=loss if losses else None,
    )
    return read_reply(message, read)


def test_a_good_reply_is_accepted_with_its_weight():
    for most, weight in ((1, 2.0), (30, 50.0), (2**31, 60.0)):  # of 20 rows and 40
        accepted = verdict(reply(), most=most)
        assert isinstance(accepted, Accepted)
        (update,) = accepted.updates
        assert_same(update.slots, {"model": GOOD})
        assert (update.rows, update.clients, update.client) == (weight, 2, None)
        assert accepted.losses == [0.5, 1.5]


def test_one_loss_does_not_make_the_mean_and_is_no_reason_to_refuse_a_model():
    for told, counted in ((3.4e38, 104.0), (1e4, 104.0), (103.0, 103.0), (-1e-9, -1e-9)):
        accepted = verdict(reply(details=clients(losses=[0.5, told])))
        assert isinstance(accepted, Accepted)
        assert accepted.losses == [0.5, counted]


def test_losses_are_screened_by_the_tasks_own_range(plug_ins):
    loss(torch.nn.functional.gaussian_nll_loss)
    likelihood = task_of("regression", "gaussian-nll-loss").metric
    told = reply(details=clients(losses=[-250.0, 2e6]))  # a log density has no bounds
    assert verdict(told, loss=likelihood).losses == [-250.0, 2e6]
    assert verdict(told, loss=REGRESSION.metric).reason == "losses must be 0 or more"
    above = reply(details=clients(losses=[3e5, 2e6]))  # squares of values in their own units
    assert verdict(above, loss=REGRESSION.metric).losses == [3e5, 2e6]


def test_losses_are_there_if_and_only_if_they_were_asked_for():
    accepted = verdict(reply(details=clients(losses=[])), losses=False)
    assert isinstance(accepted, Accepted)
    assert (accepted.clients, accepted.losses) == ([3, 7], [])
    assert verdict(reply(details=clients(losses=[]))).kind == "malformed"
    for told in ([0.5, 1.5], [0.5, float("nan")], None):
        assert verdict(reply(details=clients(losses=told)), losses=False).kind == "malformed"


def test_part_of_the_clients_may_have_failed():
    details = clients(ids=[7], losses=[1.5], failed=[3], reasons=["diverged"])
    accepted = verdict(reply(metrics={"num-examples": 40}, details=details))
    assert isinstance(accepted, Accepted)
    assert (accepted.clients, accepted.failed) == ([7], {3: "diverged"})


def test_models_come_one_by_one_where_a_mean_will_not_do():
    stacked = {name: torch.stack([leaf, 3 * leaf]) for name, leaf in GOOD.items()}
    accepted = verdict(reply(stacked), merge="median")
    assert isinstance(accepted, Accepted)
    assert [update.client for update in accepted.updates] == ASKED
    expected = {"model": {name: 3 * leaf for name, leaf in GOOD.items()}}
    assert_same(accepted.updates[1].slots, expected)
    assert verdict(reply(), merge="median").kind == "shapes"


def lying(**change):
    """An array whose header says something else than its bytes."""
    honest = Array(np.ones((2, 3), dtype=np.float32))
    fields = {"dtype": honest.dtype, "shape": honest.shape, "stype": honest.stype}
    array = Array(**(fields | {"data": honest.data} | change))
    return ArrayRecord({"model/a": array, "model/b": Array(np.ones(4, dtype=np.float32))})


def header(shape):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + min(len(text), 65535).to_bytes(2, "little") + text


HOSTILE = {
    "an error": (reply(error=Error(2, "boom")), "error"),
    "divergence": (reply(error=Error(1001, "client 3 diverged")), "diverged"),
    "no clients": (reply(details=clients(ids=None)), "malformed"),
    "losses missing": (reply(details=clients(losses=[0.5])), "malformed"),
    "ids no list": (reply(details=clients(ids=3)), "malformed"),
    "ids no numbers": (reply(details=clients(ids=["3", "7"])), "malformed"),
    "no examples": (reply(metrics={"loss": 1.0}), "malformed"),
    "another client": (reply(details=clients(ids=[3, 8])), "clients"),
    "a client twice": (reply(details=clients(ids=[3, 3])), "clients"),
    "nobody": (reply(details=clients(ids=[], losses=[])), "clients"),
    "another's failure": (reply(details=clients(failed=[8], reasons=["x"])), "clients"),
    "too many examples": (reply(metrics={"num-examples": 10**9}), "size"),
    "negative examples": (reply(metrics={"num-examples": -60}), "size"),
    "a list of examples": (reply(metrics={"num-examples": [60]}), "size"),
    "a name missing": (reply({"a": GOOD["a"]}), "names"),
    "a name more": (reply(GOOD | {"c": torch.zeros(1)}), "names"),
    "another shape": (reply(GOOD | {"a": torch.ones(3, 2)}), "shapes"),
    "another dtype": (reply(GOOD | {"a": torch.ones(2, 3).double()}), "shapes"),
    "another round": (reply(details=clients(**{"server-round": 4})), "round"),
    "no round": (reply(details=clients(**{"server-round": None})), "malformed"),
    "a round that is true": (reply(details=clients(**{"server-round": True})), "malformed"),
    "a client silently left out": (reply(details=clients(ids=[3], losses=[0.5])), "clients"),
    "another order": (reply(details=clients(ids=[7, 3])), "clients"),
    "a failure twice": (reply(details=clients(failed=[3, 3], reasons=["x", "y"])), "clients"),
    "examples as a float": (reply(metrics={"num-examples": 60.0}), "size"),
    "a loss beyond float32": (reply(details=clients(losses=[0.5, 1e300])), "non-finite"),
    "a negative loss": (reply(details=clients(losses=[0.5, -3.4e38])), "scores"),
    "a loss below 0": (reply(details=clients(losses=[0.5, -0.01])), "scores"),
    "a false label": (reply(lying(dtype="float64")), "shapes"),
    "NaN": (reply(GOOD | {"b": torch.tensor([1.0, torch.nan, 1.0, 1.0])}), "non-finite"),
    "infinity": (reply(GOOD | {"b": torch.full((4,), torch.inf)}), "non-finite"),
    "a NaN loss": (reply(details=clients(losses=[0.5, float("nan")])), "non-finite"),
    "both done and failed": (reply(details=clients(failed=[3], reasons=["x"])), "clients"),
    "a header that is no Python": (reply(lying(data=header("(((((((("))), "malformed"),
    "a header of terabytes": (reply(lying(data=header("(8000000000000,)"))), "malformed"),
    "a header too long": (reply(lying(data=header("(2, " + "3" * 20000 + ")"))), "malformed"),
    "columns first": (reply(lying(data=Array(np.ones((3, 2), np.float32).T).data)), "malformed"),
    "bytes more": (reply(lying(data=Array(np.ones((2, 3), np.float32)).data + b"x")), "malformed"),
    "half a header": (reply(lying(data=Array(np.ones((2, 3))).data[:90])), "malformed"),
    "half of the data": (
        reply(lying(data=Array(np.ones((2, 3), np.float32)).data[:-9])),
        "malformed",
    ),
    "no bytes": (reply(lying(data=b"")), "malformed"),
    "a pickle": (reply(lying(data=b"\x80\x04N.")), "malformed"),
    "another serializer": (reply(lying(stype="pickle")), "malformed"),
    "a hidden shape": (reply(lying(data=Array(np.ones((9, 9), np.float32)).data)), "malformed"),
    "a hidden dtype": (reply(lying(data=Array(np.ones((2, 3), np.int64)).data)), "malformed"),
}


def test_hostile_replies_are_rejected_by_kind():
    for name, (message, kind) in HOSTILE.items():
        with entry(name):
            rejected = verdict(message)
            assert isinstance(rejected, Rejected)
            assert rejected.kind == kind
            assert rejected.reason


def test_distances_are_exact_however_large_tensors_are():
    rng = np.random.default_rng(0)
    shapes = {"small": (3, 4), "large": (1500, 1000), "one": ()}  # the second in several parts
    x, y = ({n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()} for _ in "xy")
    one, other = ({n: torch.tensor(a) for n, a in each.items()} for each in (x, y))
    wide = [np.asarray(x[n], np.float64) - y[n] for n in shapes]
    assert distance(one, other) == pytest.approx(np.sqrt(sum((w**2).sum() for w in wide)), rel=1e-9)
    size = np.sqrt(sum((a.astype(np.float64) ** 2).sum() for a in x.values()))
    assert distance(one) == pytest.approx(size, rel=1e-9)
    assert distance({}) == 0
