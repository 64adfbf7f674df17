"""`engram reproduce universal-stream`: rows by rounds, the best fixed model, what is printed."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import check_grad

from engram.online.studies import server_steps
from engram.online.studies.server_steps import tune
from engram.online.studies.stream import best_fixed, read_stream, stream_of
from engram.settings.errors import Refused, RunStopped
from tests.studies.support import reproduce
from tests.support import write_npz


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(640) % 2
    x = rng.normal(size=(640, 2)) + np.outer(y, [1.0, -0.5])
    return write_npz(tmp_path / "table.npz", x=x, y=y)


@pytest.fixture
def federation(table):
    e, data = read_stream(table, 9)
    return e, data, stream_of(e, data)


# --- Rows and losses -------------------------------------------------------------------------


def test_rounds_are_as_many_as_the_shortest_stream(table):
    e, data = read_stream(table, None)
    assert e.num_rounds == min(len(rows) for rows in data.train.rows) == 25  # 512 by 20
    assert (e.server_step, e.order, e.partition) == ("universal", "stream", "blocks")
    with pytest.raises(Refused, match=r"--rounds must be 1 to 25, .* got 26"):
        read_stream(table, 26)


def test_a_rounds_loss_is_the_mean_of_its_rows_by_the_clients_numbers(federation):
    _, data, stream = federation
    model = np.random.default_rng(1).normal(size=(9, 2, 3))
    sizes = [len(rows) for rows in data.train.rows]
    assert len(set(sizes)) > 1
    for t in (1, 9):
        expected = 0.0
        for client, rows in enumerate(data.train.rows):
            row = np.sort(rows)[t - 1]
            logits = model[t - 1, :, :2] @ data.train.x[row].numpy() + model[t - 1, :, 2]
            loss = math.log(np.exp(logits).sum()) - logits[data.train.y[row]]
            expected += sizes[client] / sum(sizes) * loss
        assert stream.losses(model)[t - 1] == pytest.approx(expected, abs=1e-6)
    one, repeated = stream.start[None], np.tile(stream.start, (9, 1, 1))
    np.testing.assert_array_equal(stream.losses(one), stream.losses(repeated))


# --- The best fixed model --------------------------------------------------------------------


def total(stream, flat):
    return stream.losses(flat.reshape(1, *stream.start.shape)).sum()


def slope(stream, model):
    """By autograd."""
    leaf = torch.tensor(model, requires_grad=True)
    x, y = torch.tensor(stream.x), torch.tensor(stream.y)
    losses = torch.nn.functional.cross_entropy(
        (x @ leaf.T).flatten(0, 1), y.flatten(), reduction="none"
    )
    (losses.view(y.shape) @ torch.tensor(stream.weights)).sum().backward()
    return leaf.grad.numpy()


def test_the_best_of_all_has_no_slope(federation):
    *_, stream = federation
    best = best_fixed(stream)
    np.testing.assert_array_equal(best_fixed(stream, 1e3), best)  # a ball that holds it
    assert np.linalg.norm(slope(stream, best)) < 1e-6
    assert total(stream, best) < total(stream, stream.start)
    functions = partial(total, stream), lambda z: slope(stream, z.reshape(2, 3)).ravel()
    assert check_grad(*functions, stream.start.ravel()) < 1e-6  # the slope above is the losses'


def test_the_best_of_a_ball_is_pulled_straight_out_of_it(federation):
    *_, stream = federation
    radius = np.linalg.norm(best_fixed(stream) - stream.start) / 2
    best = best_fixed(stream, radius)
    out, pull = best - stream.start, -slope(stream, best)
    assert np.linalg.norm(out) == pytest.approx(radius, rel=1e-9)
    cosine = (out * pull).sum() / np.linalg.norm(out) / np.linalg.norm(pull)
    assert cosine == pytest.approx(1, abs=1e-6)


# --- Servers ---------------------------------------------------------------------------------


def test_tuning_goes_on_until_the_best_is_inside_and_what_diverges_is_infinite():
    found = tune(lambda size: (math.log2(size) - 7.2) ** 2, 1.0)
    assert min(found, key=found.get) == 2**7
    assert (min(found), max(found)) == (2**-5, 2**8)

    def score(size):
        if size > 4:
            raise RunStopped("it diverged")
        return -size

    found = tune(score, 1.0)
    assert min(found, key=found.get) == 4
    assert found[8] == math.inf


@pytest.mark.usefixtures("drawn")
def test_the_command_prints_and_records_every_server(tmp_path, table, monkeypatch):
    monkeypatch.setattr(server_steps, "_WIDTH", 1)
    words = [table.removeprefix("npz:"), "--rounds", 5, "--json"]
    done = reproduce("universal-stream", *words, out=tmp_path / "run")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    rows = {(row["server"], row["way"]): row for row in found["rows"]}
    assert {way for name, way in rows if name == "universal"} == {"x 0.25", "default", "x 4"}
    for name in ("fedavg", "fedadam", "fedyogi"):
        assert rows[name, "tuned"]["regret"] <= rows[name, "default"]["regret"]
    for row in rows.values():
        assert row["regret"] >= row["regret-in-ball"] - 1e-9  # of all is of more than of the ball
        assert f"{row['regret']:.1f}" in done.output
    assert (tmp_path / "run" / "regret.png").stat().st_size > 10_000
    assert json.loads(done.stdout.splitlines()[-1]) == found
