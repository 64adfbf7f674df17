"""Replies that must not touch the model, one by one."""

from functools import partial

import numpy as np
import pytest
import torch

from engram.core.method import Served
from engram.core.method_shapes import Shapes
from engram.core.tree import distance
from engram.guards.merge import Merge
from engram.guards.noise import secret_noise
from engram.methods.fedavg import FedAvg
from engram.scoring.evaluation import Impossible
from engram.scoring.tasks import CLASSIFICATION, REGRESSION, loss, task_of
from engram.strategies.running.reply_border import Rejected, read_reply
from engram.strategies.running.rounds import Rounds
from engram.strategies.running.screening import Accepted
from engram.strategies.running.train_replies import screen
from engram.wire.messages import TRAIN, Error, Question, Reply
from engram.wire.wire import DIVERGED
from tests.methods.problem import built
from tests.samples import entry
from tests.support import assert_same, small

MODEL = {"a": torch.zeros(2, 3), "b": torch.zeros(4)}
ASKED, EXAMPLES = [3, 7], {3: 20, 7: 40}
GOOD = {"a": torch.ones(2, 3), "b": torch.full((4,), 2.0)}
FEDAVG = built(FedAvg())


def clients(**change):
    record = {"server-round": 5, "ids": [3, 7], "losses": [0.5, 1.5], "failed": [], "reasons": []}
    return {key: value for key, value in (record | change).items() if value is not None}


def sent(params):
    return {f"model/{name}": leaf for name, leaf in params.items()}


def merge_by(merge="mean", running=()):
    """The server's merge of FedAvg, of networks with such running statistics."""
    settings = small(method="fedavg", merge=merge)
    return Merge(settings, FEDAVG, frozenset(running), secret_noise)


def reply(params=None, metrics=None, details=None, error=None, *, raw=False):
    query = Question(1, TRAIN, {})
    if error is not None:
        return Reply(query, error=error)
    content = {
        "arrays": params if raw else sent(params or GOOD),
        "metrics": {"num-examples": 60} if metrics is None else metrics,
        "clients": clients() if details is None else details,
    }
    return Reply(query, content)


def verdict(
    question,
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
        server_round=5,
        server={},
        rounds=Rounds(by, Shapes(FEDAVG, slots, {}, slots, slots, {}, Served((model,)))),
        asked=ASKED,
        examples=EXAMPLES,
        most=most,
        loss=loss if losses else None,
    )
    return read_reply(question, read)


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


@pytest.fixture
def asked():
    return Question(1, TRAIN, {})


RAISED = {
    "key": (KeyError("ids"), "malformed", "its reply lacks 'ids'"),
    "type": (TypeError("ids must be whole"), "malformed", "ids must be whole"),
    "value": (ValueError("a\nb"), "malformed", "a\\nb"),
    "score": (Impossible("accuracy of 2"), "scores", "accuracy of 2"),
    "overflow": (OverflowError(34, "too large"), "malformed", "its reply cannot be read: Overflow"),
    "end": (StopIteration(), "malformed", "its reply cannot be read: StopIteration()"),
    "depth": (RecursionError("deep"), "malformed", "its reply cannot be read: RecursionError"),
    "room": (MemoryError(), "malformed", "its reply cannot be read: MemoryError()"),
    "place": (IndexError("out of range"), "malformed", "its reply cannot be read: IndexError"),
    "other": (AttributeError("x" * 10**5), "malformed", "its reply cannot be read: Attribute"),
}


def test_whatever_a_reply_makes_its_reader_raise_is_its_senders_fault(asked):
    for name, (error, kind, reason) in RAISED.items():

        def read(content, error=error):
            raise error

        with entry(name):
            found = read_reply(Reply(asked, {}), read)
            assert isinstance(found, Rejected)
            assert found.kind == kind
            assert found.reason.startswith(reason)
            assert found.reason.isprintable()
            assert len(found.reason) <= 300


def test_what_is_read_is_returned_and_errors_are_not_read(asked):
    assert read_reply(Reply(asked, {}), len) == 0
    for code, kind in ((2, "error"), (DIVERGED, "diverged")):
        found = read_reply(Reply(asked, {}, Error(code, "out of\ndisk")), len)
        assert found == Rejected(kind, "out of\\ndisk")
    assert read_reply(Reply(asked, {}, Error(2, "")), len).reason == "no reason given"
