"""Rows of users reach a module as they are, and images train as in a plain loop."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import engram
from engram.home.predicting import predict
from engram.runs.run import Run
from engram.simulations.engine import simulate
from tests.networks import mixed
from tests.networks.plain import looped
from tests.samples import sampled
from tests.support import write_npz

CLIENTS, TRAIN, TEST = 3, 20, 8


def flat(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 3))


CASES = {
    "one channel, 16 steps, 3 axes": ((1, 16, 3), lambda: flat(48)),
    "four bands, Conv2d": ((4, 6, 6), lambda: nn.Sequential(nn.Conv2d(4, 4, 3), *flat(64))),
}


def arrays(shape, dtype="float32"):
    """Rows (clients, rows, ...) and their classes, which the rows tell."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, (CLIENTS, TRAIN + TEST))
    x = rng.normal(size=(*y.shape, *shape)) + y.reshape(*y.shape, *[1] * len(shape))
    return x.astype(dtype), y


def stored(x, y, path):
    """Both as a file with training and test rows of its own."""
    found = {}
    for part, rows in (("train", slice(None, TRAIN)), ("test", slice(TRAIN, None))):
        found[f"x_{part}"] = x[:, rows].reshape(-1, *x.shape[2:])
        found[f"y_{part}"] = y[:, rows].ravel()
        found[f"task_{part}"] = np.repeat(np.arange(CLIENTS), y[:, rows].shape[1])
    return write_npz(path, **found)


LENGTH = {"rounds": 3, "epochs": 1, "eta": 0.1}
QUICK = {"method": "fedavg", "partition": "natural", "metrics": "log-loss", "progress": False}
QUICK |= {"num_clients": CLIENTS, "clients_per_round": CLIENTS, "num_rounds": 3, "eval_every": 3}
QUICK |= {"batch_size": TRAIN, "local_epochs": 1, "validation_fraction": 0, "eta": 0.1}


@pytest.mark.parametrize("engine", sampled(("vectorized", "sequential"), ("vectorized",)))
@pytest.mark.parametrize("case", CASES)
def test_rows_reach_a_module_as_they_are(case, engine, tmp_path):
    shape, make = CASES[case]
    x, y = arrays(shape)
    torch.manual_seed(0)
    start = make()
    given = {"dataset": stored(x, y, tmp_path / "a.npz"), "model": copy.deepcopy(start)}
    run = engram.simulate(engine=engine, out=tmp_path / "run", **given, **QUICK)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    plain = looped(start, x[:, :TRAIN], y[:, :TRAIN], functional.cross_entropy, **LENGTH)
    for name, leaf in plain.named_parameters():
        torch.testing.assert_close(run.model[name], leaf.data, rtol=0, atol=1e-5)
    exported = engram.load_model(run.export(out=tmp_path / "common"))
    with torch.no_grad():
        for net in (plain, exported):  # the user's own rows go into the exported module
            own = zip(x[:, TRAIN:], y[:, TRAIN:], strict=True)
            scores = [float(functional.cross_entropy(net(rows), of)) for rows, of in own]
            np.testing.assert_allclose(run.clients["log-loss-common"], scores, atol=1e-5)


GREY = {"all": (0, 1, 2), "some": (1,), "none": ()}


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("grey", GREY)
def test_grey_levels_train_as_shares_of_255_do(grey, engine, tmp_path):
    data = [mixed.images(c) if c in GREY[grey] else mixed.shares(c) for c in range(3)]
    torch.manual_seed(0)
    start = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    quick = QUICK | {"batch_size": 16, "test_fraction": 1 / 3, "images": "grey", "engine": engine}
    run = engram.simulate(data, model=copy.deepcopy(start), out=tmp_path / "run", **quick)
    held = run.learned.data.train  # which rows are for training is drawn
    images = [mixed.images(c)[0] for c in range(3)]
    unit = 255 if held.x.is_floating_point() else 1
    drawn = [(held.x[rows] * unit).round() for rows in held.rows]
    for some, every in zip(drawn, images, strict=True):
        trained = {row.tobytes() for row in some.to(torch.uint8).numpy()}
        assert trained <= {row.tobytes() for row in every}
    x = [some.double().flatten(1).float() / 255 for some in drawn]
    y = [held.y[rows] for rows in held.rows]
    plain = looped(start, x, y, functional.cross_entropy, **LENGTH)
    for name, leaf in plain.named_parameters():
        torch.testing.assert_close(run.model[name], leaf.data, rtol=0, atol=1e-5)


def test_all_engines_have_the_same_model_of_the_same_images(plug_ins, tmp_path):
    found = {}
    for function in (mixed.all_grey, mixed.some_grey, mixed.none_grey):
        engram.data(function)
        for engine in ("sequential", "vectorized"):
            e = mixed.experiment(function)
            place = tmp_path / function.__name__ / engine
            simulate(e, place, engine=engine)
            found[function.__name__, engine] = Run.open(place).load_checkpoint().model
    first, *others = found.values()
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dtype", "images"),
    [
        ((6, 5), "float32", "auto"),
        ((6, 5, 3), "float32", "channels-last"),
        ((6, 5, 3), "uint8", "auto"),
        ((6, 5, 3), "uint8", "none"),
    ],
)
def test_rows_of_a_file_are_predicted_as_the_run_saw_its_rows(shape, dtype, images, tmp_path):
    x, y = arrays(shape)
    x = (40 * x + 100).clip(0, 255).astype(dtype)
    width = int(np.prod(shape))
    run = engram.simulate(
        dataset=stored(x, y, tmp_path / "a.npz"),
        model=flat(width),
        images=images,
        out=tmp_path / "run",
        **QUICK | {"eta": 1e-4 if dtype == "float32" else 0.1},
    )
    np.savez(tmp_path / "new.npz", x=x[0])
    table = predict(run.export(out=tmp_path / "m"), tmp_path / "new.npz", tmp_path / "p.csv").table
    first = images != "none" and len(shape) == 3
    rows = np.moveaxis(x[0], 3, 1) if first else x[0]
    rows = rows.astype("float64").reshape(len(rows), -1) / (255 if dtype == "uint8" else 1)
    weight, bias = (leaf.double().numpy() for leaf in run.model.values())
    scores = np.exp(rows @ weight.T + bias)
    expected = scores / scores.sum(1, keepdims=True)
    found = table[[f"probability {k}" for k in range(3)]].to_numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
