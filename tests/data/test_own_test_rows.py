"""Test rows that a caller gives, and which rows are for training, validation and testing."""

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from engram.data.load_federation import federated_data
from engram.settings.errors import DataError, Refused
from engram.settings.experiment import Experiment
from tests.samples import entry

QUICK = {"num_rounds": 2, "local_steps": 2, "hidden": "6", "progress": False}
CLASSES = np.array(["no", "yes"])


def rows(seed, count, form=np.asarray):
    """Rows whose first column is their own number, so that they can be told apart."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3)).astype(np.float32)
    x[:, 0] = 1000 * seed + np.arange(count)
    return form(x), CLASSES[(x[:, 1] > 0).astype(int)]


def frame(x):
    return pd.DataFrame(x, columns=["number", "a", "b"])


def given(form=np.asarray):
    """Two clients with test rows of their own, and one between them without."""
    return {
        "north": (*rows(1, 30, form), *rows(2, 8, form)),
        "east": rows(3, 40, form),
        "south": (*rows(4, 25, form), *rows(5, 12, form)),
    }


@pytest.mark.parametrize("form", [np.asarray, frame])
def test_given_test_rows_are_tested_on_and_no_others(form, tmp_path):
    """The mean over rows of what the model of plain torch gets right is the client's accuracy."""
    data = given(form)
    settings = QUICK | {"method": "ditto", "standardize": "none", "test_fraction": 0.25}
    run = engram.simulate(data, out=tmp_path / "run", **settings)
    for client, (x, y, *test) in data.items():
        tested = test or (x, y)
        split = run.split(client)
        assert list(split) == ["train", "validation", "test"]
        sizes = [len(split[part]) for part in split]
        if test:
            assert sorted([*split["train"], *split["validation"]]) == list(range(len(y)))
            assert split["test"].tolist() == list(range(len(test[1])))
        else:  # a quarter of each class
            assert sorted(np.concatenate([*split.values()])) == list(range(len(y)))
            counts = np.unique(y, return_counts=True)[1]
            assert sizes[2] == sum(round(0.25 * count) for count in counts)
        assert sizes[1] > 0
        weights = run.personal_model(client)
        own = torch.from_numpy(np.asarray(tested[0])[split["test"]].astype(np.float32))
        hidden = torch.relu(own @ weights["dense0.weight"].T + weights["dense0.bias"])
        logits = hidden @ weights["dense1.weight"].T + weights["dense1.bias"]
        found = run.predict(client)
        assert found.index.tolist() == split["test"].tolist()
        assert found["target"].tolist() == tested[1][split["test"]].tolist()
        assert found["predicted"].tolist() == CLASSES[logits.argmax(1)].tolist()
        shares = logits.double().softmax(1).numpy()
        np.testing.assert_allclose(found[["probability no", "probability yes"]], shares, atol=1e-5)
        right = (found["predicted"] == found["target"]).mean()
        assert run.clients.loc[client, "accuracy"] == pytest.approx(right)
    with pytest.raises(DataError, match="given in memory: give them again"):
        engram.load_run(tmp_path / "run").split("east")
    again = engram.load_run(tmp_path / "run", data)
    assert again.split("east")["test"].tolist() == run.split("east")["test"].tolist()


def test_given_test_rows_of_all_are_given_out(tmp_path):
    data = (*rows(1, 60), *rows(2, 20))
    settings = QUICK | {"partition": "iid", "num_clients": 4, "clients_per_round": 4}
    run = engram.simulate(data, out=tmp_path / "run", **settings)
    parts = [run.split(client) for client in range(4)]
    learned = [row for part in parts for row in (*part["train"], *part["validation"])]
    assert sorted(learned) == list(range(60))
    assert sorted(row for part in parts for row in part["test"]) == list(range(20))


def test_given_test_rows_of_a_table_are_tested_on(tmp_path):
    """Of a linear regression without noise, the coefficients are those of its training rows."""
    rng = np.random.default_rng(0)
    x, own = rng.normal(size=(2, 50, 2)), rng.normal(size=(2, 9, 2))
    data = [(x[k], x[k] @ [1.0, 2.0], own[k], own[k] @ [3.0, -1.0]) for k in (0, 1)]
    run = engram.simulate(data, method="molar", out=tmp_path / "run", progress=False)
    assert run.clients["rows"].tolist() == [9, 9]
    errors = [np.mean((part @ [-2.0, 3.0]) ** 2) for part in own]
    assert run.clients["loss-personal"].to_numpy() == pytest.approx(errors)
    with pytest.raises(Refused, match="method must be one that trains networks, got 'molar'"):
        run.split(0)


def parted(folder, *names):
    """Writes an .npz file of parts of 30, 9 and 8 rows, and returns its name as a data set."""
    arrays = {}
    for k, (name, size) in enumerate(zip(("train", *names), (30, 9, 8), strict=False)):
        arrays[f"x_{name}"], y = rows(k, size)
        arrays |= {f"y_{name}": (y == "yes").astype(int), f"task_{name}": np.arange(size) % 2}
    np.savez(path := folder / f"{'-'.join(names)}.npz", **arrays)
    return f"npz:{path}"


@pytest.mark.parametrize("partition", ["natural", "iid", "blocks"])
@pytest.mark.parametrize("names", [("val", "test"), ("valid",)])
def test_arrays_of_parts_are_parts(names, partition, tmp_path):
    """The first column of rows is 1000 times the number of their part, and their own number."""
    settings = {"partition": partition, "num_clients": 2, "model": "linear"}
    data = federated_data(Experiment(dataset=parted(tmp_path, *names), **settings))
    number = {"train": 0, **{name: 1000 * (k + 1) for k, name in enumerate(names)}}
    tested, size = (number["test"], 8) if "test" in names else (number["valid"], 9)
    assert sorted(data.test.x[:, 0].tolist()) == [*range(tested, tested + size)]
    held_out = [data.validation.x[row, 0].item() for own in data.validation.rows for row in own]
    learned = [data.train.x[row, 0].item() for own in data.train.rows for row in own]
    if "val" in names:
        assert (sorted(held_out), sorted(learned)) == ([*range(1000, 1009)], [*range(30)])
    else:  # drawn from training rows
        assert sorted(held_out + learned) == [*range(30)]


def test_arrays_of_parts_of_a_table_are_parts(tmp_path):
    run = engram.simulate(
        dataset=parted(tmp_path, "test"), method="molar", out=tmp_path / "run", progress=False
    )
    assert run.clients["rows"].tolist() == [5, 4]  # of 9 test rows


def test_parts_that_lack_an_array_are_refused(tmp_path):
    np.savez(path := tmp_path / "a.npz", x_train=rows(0, 9)[0], y_train=[0] * 9, y_val=[1])
    with pytest.raises(DataError, match=r"a.npz must hold x_val beside x_train"):
        federated_data(Experiment(dataset=f"npz:{path}"))


def copies(log):
    return [message for message in log.messages if "copies" in message]


def test_copies_on_both_sides_are_said_once(tmp_path, warnings_of_engram):
    (x, y), (x_test, y_test) = rows(6, 30), rows(7, 10)
    x_test[:3], y_test[:3] = x[:3], y[:3]
    x_test[3], y_test[3] = x[3], CLASSES[int(y[3] == "no")]  # the other class: no copy
    engram.simulate([(x, y, x_test, y_test)] * 2, out=tmp_path / "a", **QUICK)
    said = "data: 6 of 20 test rows are exact copies of training rows, on which scores are too good"
    assert copies(warnings_of_engram) == [said]
    engram.simulate([(*rows(8, 30), *rows(9, 10)), rows(10, 30)], out=tmp_path / "b", **QUICK)
    path = tmp_path / "c.npz"
    numbers = {"y_train": y == "yes", "y_test": y_test == "yes", "task_train": np.arange(30) % 2}
    np.savez(path, x_train=x, x_test=x_test, task_test=np.arange(10) % 2, **numbers)
    run = engram.simulate(dataset=f"npz:{path}", out=tmp_path / "c", **QUICK)
    assert run.split(1)["test"].tolist() == [1, 3, 5, 7, 9]
    said = said.replace("data", str(path)).replace("6 of 20", "3 of 10")
    assert copies(warnings_of_engram)[1:] == [said]


UNLIKE = [
    ((*rows(1, 9), rows(2, 9)[0]), r"client 1 must be \(x, y\) or \(x, y, x_test, .*, got t"),
    ((*rows(1, 9), *rows(2, 0)), "the test set of client 1 has no rows"),
    (
        (*rows(1, 9), np.zeros((4, 2)), CLASSES[[0, 1, 0, 1]]),
        r"rows of x of the test set of client 1 must be of shape \(3,\) as those of client 0",
    ),
    ((*rows(1, 9), rows(2, 9)[0], [0] * 9), "y of the test set of client 1 must be <U3 as that"),
]


def test_test_rows_unlike_the_others_are_refused(tmp_path):
    for client, message in UNLIKE:
        with entry(message), pytest.raises(DataError, match=message):
            engram.simulate([rows(0, 9), client], out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()
