"""Files of users: arrays that are read as they are drawn, images in folders, CSV for networks."""

import numpy as np
import pytest
import torch
from PIL import Image

from engram.data.load_federation import federated_data, own_data
from engram.data.source import Source
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from tests.samples import entry
from tests.support import declared_values, write_npz

FOUR = {"num-clients": 4, "clients-per-round": 4, "partition": "natural"}
FOUR |= {"protocol": "few-shot", "adapt-shots": 1}


def read(dataset, client=None, **settings):
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    experiment = Experiment.from_config(FOUR | {"dataset": dataset} | given)
    if client is None:
        return federated_data(experiment)
    return own_data(experiment, Source(dataset), client)


def everything(split):
    return split.take(torch.arange(len(split.y)))


# --- .npy ------------------------------------------------------------------------------------

INPUTS = {
    "float64": lambda rng: rng.normal(size=(80, 5)),
    "grey": lambda rng: rng.integers(0, 256, (80, 6, 7), dtype=np.uint8),
    "colors": lambda rng: rng.integers(0, 256, (80, 6, 7, 3), dtype=np.uint8),
    "big endian": lambda rng: rng.normal(size=(80, 5)).astype(">f4"),
}


def arrays_of(x, **more):
    y = np.random.default_rng(1).integers(0, 3, 80)
    return {"x": x, "y": y, "task": np.repeat(np.arange(4), 20), **more}


def write_npy(folder, **arrays):
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return f"npy:{folder}"


@pytest.mark.parametrize("kind", INPUTS)
def test_rows_are_those_of_memory(tmp_path, kind):
    arrays = arrays_of(INPUTS[kind](np.random.default_rng(0)))
    one = read(write_npz(tmp_path / "a.npz", **arrays))
    two = read(write_npy(tmp_path / "a", **arrays))
    assert one.kind == two.kind
    for held, drawn in ((one.train, two.train), (one.test, two.test)):
        assert [r.tolist() for r in held.rows] == [r.tolist() for r in drawn.rows]
        rows = torch.tensor([[3, 0, 3], [1, 7, 2]])
        for a, b in zip(held.take(rows), drawn.take(rows), strict=True):
            assert torch.equal(a, b)
        out = torch.empty(2, held.numbers, 3).mT
        assert drawn.take(rows, out=out)[0].equal(held.take(rows)[0].flatten(2))


def test_several_inputs_are_read_as_they_are_drawn(tmp_path):
    rng = np.random.default_rng(0)
    arrays = arrays_of(rng.integers(0, 9, (80, 4)))
    arrays = {"x.photo": INPUTS["grey"](rng), "x.words": arrays.pop("x"), **arrays}
    one = read(write_npz(tmp_path / "a.npz", **arrays))
    two = read(write_npy(tmp_path / "a", **arrays))
    assert one.kind == two.kind
    for name, leaf in everything(one.train)[0].items():
        assert torch.equal(leaf, everything(two.train)[0][name])


def test_columns_of_arrays_have_names(tmp_path):
    arrays = arrays_of(np.ones((80, 2)), x_names=np.array(["age", "dose"]))
    for data in (write_npy(tmp_path / "a", **arrays), write_npz(tmp_path / "a.npz", **arrays)):
        assert read(data).schema.inputs == ("age", "dose")
    arrays["x_names"] = arrays["x_names"][:1]
    with pytest.raises(DataError, match="x_names must name 2 columns, got age"):
        read(write_npy(tmp_path / "a", **arrays))


@pytest.mark.parametrize("write", [write_npy, write_npz])
def test_a_nodes_arrays_that_name_columns_are_in_the_order_of_these(tmp_path, write):
    x = np.arange(240).reshape(80, 3) + np.array([0.0, 0.25, 0.5])
    place = tmp_path / ("a" if write is write_npy else "a.npz")
    arrays = arrays_of(x, x_names=np.array(["x10", "age", "x9"]))
    data = read(write(place, **arrays), client=1, num_classes=3)
    assert data.schema.inputs == ("age", "x9", "x10")
    rows, _ = everything(data.train)
    np.testing.assert_array_equal(rows.numpy() % 1, [[0.25, 0.5, 0]] * len(rows))


def test_a_row_that_cannot_be_read_is_named(tmp_path):
    arrays = arrays_of(INPUTS["float64"](np.random.default_rng(0)))
    arrays["x"][40:60] = np.nan
    names = np.array(["park", "lake", "hill", "port"])
    data = read(write_npy(tmp_path / "a", **arrays, task_names=names))
    with pytest.raises(DataError, match=r"^client hill: row [45]\d cannot be read: .*a: x must be"):
        everything(data.train)
    clean = read(write_npy(tmp_path / "b", **(arrays | {"x": np.ones((80, 5))})))
    with (tmp_path / "b" / "x.npy").open("r+b") as file:
        file.truncate(1000)  # while a run is under way
    with pytest.raises(DataError, match=r"client 1: row \d+ cannot be read: .*x\.npy ends before"):
        clean.train.take(torch.tensor(clean.train.rows[1]))
    with pytest.raises(DataError, match=r"x\.npy is cut short: .* 3200 bytes"):
        read(f"npy:{tmp_path}/b")


NO_FOLDERS = [
    ({"y": np.array(3)}, r"y must .*, got"),
    ({"y": np.array(3), "task": np.ones(80)}, "y must have an entry for each row, got one"),
    ({"x": np.ones((79, 5))}, r"x must have one row for each of the 80 entries of y, got .*79"),
    ({"x": np.ones((5, 80)).T}, r"x\.npy must be in C order: write numpy"),
    ({"x": np.array([{}] * 80)}, r"x\.npy must be a plain array, as numpy\.save"),
    ({"x": np.ones(80)}, "x must be numbers, in rows"),
    ({"y": np.zeros(80)}, "y must hold at least 2 classes"),
]


def test_other_folders_are_refused(tmp_path):
    for change, message in NO_FOLDERS:
        with entry(change), pytest.raises(DataError, match=message):
            read(write_npy(tmp_path / "a", **(arrays_of(np.ones((80, 5))) | change)))
    with pytest.raises(DataError, match=r"none must be a folder with x\.npy and y\.npy"):
        read(f"npy:{tmp_path}/none")


# --- Images ----------------------------------------------------------------------------------


def write_images(folder, clients=("hill", "lake", "park", "port")):
    for client in clients:
        for kind in ("cat", "dog"):
            (place := folder / client / kind).mkdir(parents=True)
            for number in range(6):
                Image.new("RGB", (4, 5)).save(place / f"{number}.png")
    return f"images:{folder}"


def test_an_image_that_cannot_be_read_is_named(tmp_path):
    data = read(write_images(tmp_path / "photos"))
    bad = tmp_path / "photos" / "lake" / "cat"
    for path in bad.iterdir():
        path.write_bytes(b"no image")
    match = r"^client lake: row \d+ cannot be read: .*lake/cat/\d\.png is no image \(Unidentified"
    with pytest.raises(DataError, match=match):
        data.train.take(torch.tensor(data.train.rows[1]))
    for path in bad.iterdir():
        Image.new("RGB", (9, 5)).save(path)
    with pytest.raises(DataError, match=r"must be 4 x 5 pixels, as .*0\.png is, got 9 x 5"):
        data.train.take(torch.tensor(data.train.rows[1]))
    with pytest.raises(DataError, match="must hold images as CLASS/FILE or, of several"):
        read(f"images:{tmp_path}/none")


def test_a_node_must_know_the_classes(tmp_path):
    write_images(tmp_path / "photos", clients=("lake",))
    dataset = f"images:{tmp_path}/photos/lake"
    with pytest.raises(DataError, match=r"class is text.*columns.class = .values = ..A., .B."):
        read(dataset, client=1)
    data = read(dataset, client=1, schema=declared_values(**{"class": "bird|cat|dog"}))
    assert (data.outputs, sorted(set(data.train.y.tolist()))) == (3, [1, 2])
    with pytest.raises(DataError, match=r"must be one of bird, cat \(values\), got 'dog'"):
        read(dataset, client=1, schema=declared_values(**{"class": "bird|cat"}))


# --- CSV -------------------------------------------------------------------------------------

TABLE = """age,color,ward,died
1,red,a,no
2,blue,a,yes
,red,a,no
9,,a,yes
4,green,b,no
6,green,b,no
5,red,b,yes
7,blue,b,yes
"""
WARDS = {"num_clients": 2, "clients_per_round": 2, "target_column": "died", "task_column": "ward"}
WARDS |= {"batch_size": 1, "method": "fedavg", "test_fraction": 0.5}


def read_wards(tmp_path, text=TABLE, **settings):
    (tmp_path / "a.csv").write_text(text)
    return read(f"csv:{tmp_path}/a.csv", **(WARDS | settings))


def test_categories_are_declared_for_nodes(tmp_path):
    (tmp_path / "a.csv").write_text(TABLE)
    settings = WARDS | {"missing": "median"}
    known = declared_values(color="red|blue|green")
    with pytest.raises(DataError, match=r"died is text.*columns.died = .values = ..A., .B."):
        read(f"csv:{tmp_path}/a.csv", client=1, schema=known, **settings)
    known = declared_values(color="red|blue|green|pink", died="no|yes|unknown")
    data = read(f"csv:{tmp_path}/a.csv", client=1, schema=known, **settings)
    assert (data.kind.inputs, data.outputs) == ("float32[5]", 3)


NO_TABLES = [
    (TABLE, {"target_column": "dead"}, "has no column 'dead'; it has age, color, ward, died"),
    (TABLE, {"target_column": "", "missing": "median"}, "has no column ''; it has age, color"),
    (TABLE, {"task_column": "site", "missing": "median"}, "must have site, as task-column says"),
    (TABLE.replace("7,blue,b", "7,blue,"), {}, "ward is missing in row 9"),
    (TABLE.replace("yes", "", 1), {}, "died is missing in row 3"),
    (TABLE, {"input_columns": "age,died"}, "input-columns must be without died, which are tar"),
    ("died,ward\n0,a\n1,b\n", {}, "must have a column besides died to learn from"),
]


def test_other_tables_are_refused(tmp_path):
    for text, settings, message in NO_TABLES:
        with entry(text, settings), pytest.raises(DataError, match=message):
            read_wards(tmp_path, text, **settings)
