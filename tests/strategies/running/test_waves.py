"""Runs on the simulated clock: FedBuff by hand, resumed runs, and settings."""

import numpy as np
import pytest
import torch

from engram.core.types import Params
from engram.runs.run import Run
from engram.settings.errors import Refused, RunStopped
from engram.settings.experiment import Experiment
from engram.settings.families import METHODS
from engram.settings.network import NetworkMethod
from engram.simulations.engine import simulate
from engram.wire.wire import ARRAYS
from tests.samples import EIGHT, entry
from tests.support import PROTECTED, grid, initial_model, strategy_of, trainer

WHOLE = {"model": "linear", "batch_size": 1000, "local_steps": 1, "weighting": "clients"}
BUFFERED = {"clock": "drawn", "buffer_size": 2}
SMALL = {"method": "fedavg", "num_clients": 8, "num_rounds": 6, "clients_per_round": 4}
SMALL |= {"eval_every": 3, "hidden": "6"}
SLOW = {"clock": "drawn,stragglers=0.25,speed-spread=0.5"}


def run(folder, **settings):
    simulate(Experiment(**(SMALL | settings)), folder)
    record = Run.open(folder)
    checkpoint = record.load_checkpoint()
    assert checkpoint is not None
    rows = [row for row in record.rows() if row["round"]]
    return checkpoint.model, rows


def same(one: Params, other: Params) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def traced(folder, seconds):
    lines = [f"{client},{each},1e30" for client, each in enumerate(seconds)]
    (folder / "trace.csv").write_text("\n".join(["client,step-seconds,bandwidth", *lines]))
    return str(folder / "trace.csv")


class Softmax:
    """Softmax regression of clients on all of their rows, in numpy."""

    def __init__(self, data):
        self.rows = [
            (data.train.x[rows].double().numpy().reshape(len(rows), -1), data.train.y[rows].numpy())
            for rows in data.train.rows
        ]

    def step(self, client, w, eta):
        x, y = self.rows[client]
        logits = x @ w[0] + w[1]
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        return w[0] - eta * x.T @ p / len(y), w[1] - eta * p.mean(0)


def as_numpy(model, classes=10):
    weight, bias = sorted(model.values(), key=lambda leaf: -leaf.numel())
    weight = weight.double().numpy()
    return (weight if weight.shape[1] == classes else weight.T), bias.double().numpy()


def test_buffers_of_one_are_asynchronous_sgd(tmp_path):
    """w_{v+1} = w_v - s(v - u) eta grad f_c(w_u), s(t) = 1 / sqrt(1 + t): Nguyen et al., Alg. 1."""
    settings = {**WHOLE, "num_clients": 2, "clients_per_round": 2, "eta": 0.5, "max_norm": 1e9}
    settings |= {"clock": traced(tmp_path, [1.0, 2.5]), "buffer_size": 1}
    found, rows = run(tmp_path / "run", **settings)
    # Client 0 answers at 1 and 2, client 1 at 2.5 with its change of the first model, ...
    order = [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 2.5), (0, 2, 3.0), (0, 4, 4.0), (0, 5, 5.0)]
    assert [row["cohort"] for row in rows] == [[client] for client, _, _ in order]
    assert [row["simulated-seconds"] for row in rows] == [second for *_, second in order]
    assert [row["staleness"] for row in rows] == [0, 0, 2, 1, 0, 0]
    t = trainer(Experiment(**(SMALL | settings)))
    problem, models = Softmax(t.data), [as_numpy(initial_model(t)["model"])]
    for client, version, _ in order:
        then, now = models[version], models[-1]
        moved, weight = problem.step(client, then, 0.5), 1 / np.sqrt(len(models) - version)
        models.append([n + weight * (m - t) for n, m, t in zip(now, moved, then, strict=True)])
    for ours, theirs in zip(as_numpy(found), models[-1], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "scaffold"])
def test_equal_clients_and_a_whole_buffer_are_synchronous_rounds(tmp_path, method):
    plain, _ = run(tmp_path / "plain", method=method)
    timed, one = run(tmp_path / "timed", method=method, clock="drawn")
    whole = BUFFERED | {"buffer_size": 4}
    buffered, other = run(tmp_path / "buffered", method=method, **whole)
    assert same(plain, timed)
    assert same(plain, buffered)
    seconds = [row["simulated-seconds"] for row in one]
    assert [row["simulated-seconds"] for row in other] == seconds
    assert seconds == pytest.approx([seconds[0] * n for n in range(1, 7)])


def test_a_rounds_seconds_are_its_steps_and_its_bytes(tmp_path):
    settings = {"clock": "drawn,step-seconds=0.25,bandwidth=1e4", "model": "linear"}
    model, rows = run(tmp_path / "run", **settings)
    size = 4 * sum(leaf.numel() for leaf in model.values())  # float32, received and sent
    assert rows[0]["simulated-seconds"] == pytest.approx(5 * 0.25 + 2 * size / 1e4)
    epochs, rows = run(tmp_path / "epochs", **settings, local_epochs=2, batch_size=10**5)
    assert rows[0]["simulated-seconds"] == pytest.approx(2 * 0.25 + 2 * size / 1e4)
    assert not same(model, epochs)


def test_clients_that_come_too_late_are_dropped(tmp_path):
    e = {"num_clients": 4, "clock": traced(tmp_path, [0.1, 0.1, 0.3, 0.5])}
    settings = {**e, "num_rounds": 2, "eval_every": 2}
    _, rows = run(tmp_path / "deadline", **settings, deadline=2.0)
    assert [row["absent"] for row in rows] == [{"3": "late"}] * 2  # 1.5 s are in time, 2.5 not
    assert [row["simulated-seconds"] for row in rows] == [2.0, 4.0]
    assert [(row["clients"], row["left-out"], row["cohort"]) for row in rows] == [
        (3, 1, [0, 1, 2, 3])
    ] * 2
    some = settings | {"clients_per_round": 2}
    _, rows = run(tmp_path / "more", **some, over_selection=1.0)
    assert [row["absent"] for row in rows] == [{"2": "late", "3": "late"}] * 2
    assert [row["simulated-seconds"] for row in rows] == pytest.approx([0.5, 1.0])
    with pytest.raises(RunStopped, match=r"round 1: none of 4 clients answers within deadline"):
        run(tmp_path / "none", **settings, deadline=0.2)


@pytest.mark.parametrize("settings", [BUFFERED | SLOW, {"deadline": 0.6} | SLOW])
def test_a_resumed_run_repeats_one_that_was_not_stopped(tmp_path, settings):
    settings = settings | {"method": "ditto", "checkpoint_every": 1}
    whole, rows = run(tmp_path / "whole", **settings)
    run(tmp_path / "parts", **(settings | {"num_rounds": 3}))
    found, again = run(tmp_path / "parts", **settings, resume=str(tmp_path / "parts"))
    assert same(whole, found)
    keys = ("cohort", "simulated-seconds", "staleness", "absent", "accuracy")
    assert [[row.get(k) for k in keys] for row in again] == [[r.get(k) for k in keys] for r in rows]


NETWORKS = {name: m for name, m in METHODS.items() if issubclass(m, NetworkMethod)}
BUFFERS = [name for name in EIGHT if name in PROTECTED]


@pytest.mark.parametrize("name", BUFFERS)
def test_every_method_whose_server_sees_a_mean_runs_in_buffers(tmp_path, name):
    settings = BUFFERED | SLOW | {"num_rounds": 4, "eval_every": 4}
    model, rows = run(tmp_path / "run", method=name, **settings)
    assert all(torch.isfinite(leaf).all() for leaf in model.values())
    assert all(row["clients"] == 2 for row in rows)


def test_what_buffers_cannot_have_is_refused_by_name():
    for settings, words in [
        *[
            ({"method": n}, f"buffer-size = 2 needs .* mean of updates alone: that of {n} sees")
            for n, method in NETWORKS.items()
            if method.each
        ],
        ({"buffer_size": 5}, "buffer-size must be at most clients-per-round = 4"),
        ({"min_clients": 3}, "min-clients must be at most buffer-size = 2"),
    ]:
        with entry(settings), pytest.raises(Refused, match=words):
            Experiment(**(SMALL | BUFFERED | settings))


def test_settings_of_time_that_do_not_go_together_are_refused():
    for settings, words in [
        ({"stragglers": 0.1}, "stragglers is no setting any more: write clock = drawn,str"),
        (
            {"clock": "drawn,speed=8"},
            "clock must be drawn with some of step-seconds, .*, got 'drawn,speed=8'",
        ),
        (
            {"clock": "drawn,stragglers=2"},
            "clock.stragglers must be less than or equal to 1, got '2'",
        ),
        ({"clock": "drawn, slowdown"}, "clock.slowdown must be a valid number, got ''"),
        ({"deadline": 1.0}, "deadline must be 0 without a clock"),
        ({"over_selection": 1.0}, "over-selection must be 0 without a clock"),
        ({"clock": "drawn", "over_selection": 1.5}, "over-selection must be at most what makes 8"),
        ({"clock": "drawn,step-seconds=-1"}, "clock.step-seconds must be greater than 0"),
    ]:
        with entry(settings), pytest.raises(Refused, match=words):
            Experiment(**(SMALL | settings))


def test_a_buffered_simulation_needs_a_clock(tmp_path):
    with pytest.raises(Refused, match="clock must be drawn, or a CSV file, for buffered rounds"):
        run(tmp_path / "run", buffer_size=2)
    with pytest.raises(Refused, match=r"trace\.csv must have a line for each of 8 clients"):
        run(tmp_path / "run", clock=traced(tmp_path, [1.0, 2.0]))
    assert not (tmp_path / "run").exists()


def test_nodes_at_work_are_not_asked_again_and_merged_when_they_answer():
    settings = {"buffer_size": 2, "weighting": "clients", "max_norm": 1e9}
    e = Experiment(**(SMALL | settings))
    g = grid(trainer(e), nodes=8)
    strategy, _ = strategy_of(e, g)
    config = {"training": "0" * 16, "durable": 0, "way": "", "losses": True}
    first = strategy.init()
    messages = [*strategy.configure_train(1, first, config, g)]
    assert len(messages) == 4
    slow = messages[2:]
    second, metrics = strategy.aggregate_train(1, g.ask(messages[:2], timeout=60))
    assert metrics["clients"] == 2
    assert strategy.row({})["staleness"] == 0
    assert metrics["cohort"] == sorted(message.node - 1 for message in messages[:2])
    g.at_work = {message.node for message in slow}
    asked = [*strategy.configure_train(2, second, config, g)]
    assert len(asked) == 2  # in the place of those that have answered
    assert g.at_work.isdisjoint(message.node for message in asked)
    replies = list(g.ask(slow, timeout=60))
    sent = [reply.content[ARRAYS] for reply in replies]
    third, metrics = strategy.aggregate_train(2, replies)
    assert (metrics["clients"], metrics["left-out"]) == (2, 0)
    assert strategy.row({})["staleness"] == 1
    then, now, found = (first, second, third)
    for name, leaf in found.items():  # after one round: 1 / sqrt(1 + 1)
        mean = torch.stack([each[name].reshape(leaf.shape) for each in sent]).mean(0)
        torch.testing.assert_close(leaf, now[name] + 2**-0.5 * (mean - then[name]))
    g.at_work = set()  # the others are lost, and no more waited for
    assert len([*strategy.configure_train(3, third, config, g)]) == 4
