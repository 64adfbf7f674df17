"""Rows that name their clients: the partition is by these, unless another is asked for."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import engram
from engram.data.load_federation import federated_data
from engram.data.loading import count_clients, follow_rows
from engram.data.readers.in_memory import hold
from engram.data.source import Source
from engram.settings.errors import DataError, Refused
from engram.settings.experiment import Experiment
from tests.samples import entry
from tests.support import small, write_npz

USERS = np.repeat(["b", "a", "c"], 20)
QUICK = {"method": "fedavg", "num_rounds": 1, "model": "linear", "progress": False}


def arrays(**more):
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    return {"x": x, "y": np.tile([0, 1], 30), **more}


def written(kind, folder, users=USERS):
    """Writes rows of three users, whose column is called user, and returns the data set's name."""
    held = arrays(user=users)
    frame = pd.DataFrame(held["x"], columns=list("uvw")).assign(y=held["y"], user=USERS)
    place = folder / kind
    if kind == "npz":
        return write_npz(folder / "a.npz", **held)
    if kind == "npz of parts":
        both = {f"{k}_{part}": v for k, v in held.items() for part in ("train", "test")}
        return write_npz(folder / "b.npz", **both)
    if kind == "csv":
        frame.to_csv(folder / "a.csv", index=False)
        return f"csv:{folder}/a.csv"
    if kind == "parquet":
        frame.to_parquet(folder / "a.parquet")
        return f"parquet:{folder}/a.parquet"
    place.mkdir()
    for name, array in held.items():
        np.save(place / f"{name}.npy", array)
    return f"npy:{place}"


@pytest.mark.parametrize("kind", ["npz", "npz of parts", "csv", "parquet", "npy"])
def test_rows_are_given_to_the_clients_that_they_name(kind, tmp_path):
    dataset = written(kind, tmp_path)
    given = {"method": "fedavg", "dataset": dataset, "task-column": "user", "model": "linear"}
    found = follow_rows(given)
    assert found == {**given, "partition": "natural", "num-clients": 3}
    data = federated_data(Experiment.from_config(found))
    assert data.names == {0: "a", 1: "b", 2: "c"}
    x = arrays()["x"]
    for client, name in data.names.items():
        for split in (data.train, data.test, data.validation):
            own, _ = split.take(torch.from_numpy(split.rows[client]))
            mine = {row.tobytes() for row in x[name == USERS]}
            assert {row.numpy().tobytes() for row in own} <= mine
    wrong = Experiment.from_config(found | {"task-column": "usr"})
    with pytest.raises(DataError, match=r"must have usr, as task-column says; it has .*user"):
        federated_data(wrong)


def in_parts(kind, folder):
    """Writes rows of clients a and b, of c for testing alone, and of d for validation alone."""
    users = {"train": "ab" * 10, "test": "abc" * 4, "val": "ad" * 4}
    rng = np.random.default_rng(0)
    frames = {
        part: pd.DataFrame(rng.normal(size=(len(whose), 2)).round(3), columns=["u", "v"]).assign(
            y=[k // len(set(whose)) % 2 for k in range(len(whose))], user=[*whose]
        )
        for part, whose in users.items()
    }
    together = pd.concat([frame.assign(part=part) for part, frame in frames.items()])
    more = {"schema": 'columns.part = {role = "part"}'}
    if kind == "npz":
        columns = {"x": ["u", "v"], "y": "y", "user": "user"}
        arrays = {
            f"{n}_{part}": frame[c].to_numpy(str if n == "user" else None)
            for part, frame in frames.items()
            for n, c in columns.items()
        }
        return {"dataset": write_npz(folder / "a.npz", **arrays)}
    if kind == "csv":
        together.to_csv(folder / "a.csv", index=False)
        return {"dataset": f"csv:{folder}/a.csv", **more}
    if kind == "parquet":
        together.to_parquet(folder / "a.parquet", index=False)
        return {"dataset": f"parquet:{folder}/a.parquet", **more}
    if kind == "parquet folder":
        for part, frame in frames.items():
            frame.to_parquet(folder / f"{part}.parquet", index=False)
        return {"dataset": f"parquet:{folder}"}
    for part, frame in frames.items():
        for number, (user, y) in enumerate(zip(frame["user"], frame["y"], strict=True)):
            (place := folder / part / user / f"class{y}").mkdir(parents=True, exist_ok=True)
            Image.new("L", (2, 2), number).save(place / f"{number}.png")
    return {"dataset": f"images:{folder}", "task-column": "task"}


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet", "parquet folder", "images"])
def test_clients_without_training_rows_are_counted_as_they_are_read_and_named(kind, tmp_path):
    given = {"method": "fedavg", "task-column": "user", "model": "linear"}
    found = follow_rows(given | in_parts(kind, tmp_path))
    data = federated_data(Experiment.from_config(found))
    names = dict(enumerate("abc" if kind == "parquet folder" else "abcd"))  # whose val is not read
    assert (found["num-clients"], data.names) == (len(names), names)
    why = "it has no training rows"
    beside = {3: f"{why} beside 4 held out for validation"} if 3 in names else {}
    assert data.left_out == {2: why} | beside
    assert [len(own) for own in data.test.rows][:3] == [4, 4, 0]


def test_images_and_rows_in_memory_and_of_functions_name_their_clients(tmp_path, plug_ins):
    for user in "abc":
        for label in ("cat", "dog"):
            folder = tmp_path / "images" / user / label
            folder.mkdir(parents=True)
            Image.new("L", (2, 2)).save(folder / "1.png")
    assert count_clients(Source(f"images:{tmp_path}/images"), "task", tmp_path) == 3
    assert count_clients(hold(arrays(task=USERS)), "task", tmp_path) == 3

    @engram.data
    def three_users():
        held = arrays()
        return {u: (held["x"][u == USERS], held["y"][u == USERS]) for u in "abc"}

    @engram.data
    def one_by_one(client):
        return arrays()["x"], arrays()["y"]

    found = follow_rows({"dataset": "three-users", "method": "fedavg"})
    assert found["num-clients"] == 3
    assert follow_rows({"dataset": "one-by-one", "method": "fedavg"})["partition"] == "natural"


def test_rows_that_name_nobody_and_those_that_are_not_there_are_left_to_the_loader():
    for dataset in ["digits", "npz:none.npz", "csv:none.csv", "nothing", 3]:
        with entry(dataset):
            assert follow_rows({"dataset": dataset}) == {"dataset": dataset}


@pytest.mark.parametrize("kind", ["npz", "npz of parts", "npy"])
def test_arrays_that_name_nobody_are_refused(kind, tmp_path):
    words = r"user(_train)? must be one column of numbers or text"
    for named in (np.ones((60, 2)), np.array(3), np.zeros(60, "V4")):
        (folder := tmp_path / str(named.ndim) / named.dtype.kind).mkdir(parents=True)
        dataset = written(kind, folder, named)
        e = small(dataset=dataset, task_column="user", partition="natural", num_clients=60)
        with entry(named):
            assert count_clients(Source(dataset), "user", tmp_path) == 0
            with pytest.raises(DataError, match=words):
                federated_data(e)


def test_another_partition_or_number_of_clients_stands_or_is_refused(tmp_path, warnings_of_engram):
    given = {"method": "fedavg", "dataset": written("npz", tmp_path), "task-column": "user"}
    assert follow_rows(given | {"partition": "iid"}) == given | {"partition": "iid"}
    (line,) = warnings_of_engram.messages
    words = "a.npz names its rows' clients, 3 of them, and partition=iid gives out rows anew"
    assert line.endswith(words)
    found = follow_rows(given | {"num-clients": "2"})
    with pytest.raises(DataError, match="num-clients must be the number of clients in the data, 3"):
        federated_data(Experiment.from_config(found))
    assert follow_rows(given | {"method": "molar"})["num-clients"] == 3
    assert "partition" not in follow_rows(given | {"method": "molar"})


def test_python_follows_rows_of_files_and_of_frames(tmp_path):
    dataset = written("csv", tmp_path)
    settings = {**QUICK, "dataset": dataset, "task_column": "user"}
    run = engram.simulate(out=tmp_path / "run", **settings)
    assert run.clients.index.tolist() == ["a", "b", "c"]
    frame = pd.read_csv(tmp_path / "a.csv")
    data = frame.drop(columns="y"), frame["y"]
    beside = engram.simulate(data, out=tmp_path / "f", task_column="user", **QUICK)
    assert beside.clients.index.tolist() == ["a", "b", "c"]
    again = engram.simulate(resume=tmp_path / "run", num_rounds=2, progress=False)
    assert len(again.metrics) == 3
    with pytest.raises(Refused, match="num-clients must be the number of clients in the data, 3"):
        engram.simulate(out=tmp_path / "no", num_clients=4, **settings)


def test_the_command_follows_rows(tmp_path, request):
    command = request.getfixturevalue("engram")
    words = [f"dataset={written('npz', tmp_path)}", "task-column=user", "num-rounds=1"]
    sets = [word for pair in words for word in ("-s", pair)]
    assert command("run", "fedavg", *sets, "-s", "model=linear", "--out", "r")[0] == 0
    assert engram.load_run("r").clients.index.tolist() == ["a", "b", "c"]
    assert command("data", *sets, "--out", "d.png")[0] == 0
