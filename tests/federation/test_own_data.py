"""Files of users: arrays that are read as they are drawn, images in folders, CSV for networks."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from federation.data.federated import federated_data, own_data
from federation.errors import DataError
from federation.experiment import Experiment
from simulations.engine import simulate
from tests.support import small_of_any, write_npz

FOUR = {"num-clients": 4, "clients-per-round": 4, "partition": "natural", "adapt-shots": 1}


def read(dataset, client=None, **settings):
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    experiment = Experiment.from_config(FOUR | {"dataset": dataset} | given)
    if client is None:
        return federated_data(experiment)
    return own_data(experiment, dataset, client)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.ones((79, 5))}, r"x must have one row for each of the 80 entries of y, got .*79"),
        ({"x": np.ones((5, 80)).T}, r"x\.npy must be in C order: write numpy"),
        ({"x": np.array([{}] * 80)}, r"x\.npy must be a plain array, as numpy\.save"),
        ({"x": np.ones((80, 2, 2, 2))}, "x must be numbers of shape"),
        ({"y": np.zeros(80)}, "y must be one class number"),
    ],
)
def test_refuses_folders_that_are_none(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        read(write_npy(tmp_path / "a", **(arrays_of(np.ones((80, 5))) | change)))
    with pytest.raises(DataError, match=r"none must be a folder with x\.npy and y\.npy"):
        read(f"npy:{tmp_path}/none")


# --- Images ----------------------------------------------------------------------------------


def write_images(folder, clients=("hill", "lake", "park", "port"), count=6, mode="RGB"):
    rng = np.random.default_rng(0)
    for client in clients:
        for kind in ("cat", "dog"):
            place = folder / client / kind
            place.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).convert(mode).save(place / f"{number}.png")
    return f"images:{folder}"


@pytest.mark.parametrize(("mode", "shape"), [("RGB", "3,5,4"), ("L", "1,5,4")])
def test_images_of_clients_are_decoded_as_they_are_drawn(tmp_path, mode, shape):
    data = read(write_images(tmp_path / "photos", mode=mode), test_fraction=0.5)
    assert data.kind.inputs == f"float32[{shape}]"
    assert dict(data.names) == {0: "hill", 1: "lake", 2: "park", 3: "port"}
    x, y = data.train.take(torch.tensor(data.train.rows[2]))
    assert y.bincount().tolist() == [3, 3]
    folder = tmp_path / "photos" / "park"
    own = {
        np.moveaxis(np.atleast_3d(np.asarray(Image.open(path))), 2, 0).tobytes(): path.parent.name
        for path in folder.rglob("*.png")
    }
    for image, label in zip((x * 255).round().to(torch.uint8), y.tolist(), strict=True):
        assert own[image.numpy().tobytes()] == ("cat", "dog")[label]


def test_images_without_clients_are_given_out(tmp_path):
    write_images(tmp_path, clients=("all",), count=20)
    data = read(f"images:{tmp_path}/all", partition="iid", test_fraction=0.4)
    assert (len(data.train.y), data.names) == (24, {})


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
    with pytest.raises(DataError, match=r"class is text.*categories=class=A\|B"):
        read(dataset, client=1)
    data = read(dataset, client=1, categories="class=bird|cat|dog")
    assert (data.outputs, sorted(set(data.train.y.tolist()))) == (3, [1, 2])
    with pytest.raises(DataError, match=r"must be one of bird, cat \(categories\), got 'dog'"):
        read(dataset, client=1, categories="class=bird|cat")


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
WARDS = {
    "num_clients": 2,
    "clients_per_round": 2,
    "target_column": "died",
    "task_column": "ward",
    "batch_size": 1,
    "method": "fedavg",
    "test_fraction": 0.5,
}


def rows_of(tmp_path, text=TABLE, **settings):
    """Returns inputs and targets of all rows, sorted."""
    (tmp_path / "a.csv").write_text(text)
    data = read(f"csv:{tmp_path}/a.csv", **(WARDS | settings))
    parts = [everything(part) for part in (data.train, data.test)]
    rows = torch.cat([torch.cat([x, y[:, None]], dim=1) for x, y in parts])
    return data, sorted(rows.tolist())


def test_missing_values_have_a_column(tmp_path):
    data, rows = rows_of(tmp_path, missing="indicator")
    assert dict(data.names) == {0: "a", 1: "b"}
    assert rows == sorted(
        [  # age, is it missing, blue, green, red, is it missing; died
            [1, 0, 0, 0, 1, 0, 0],
            [2, 0, 1, 0, 0, 0, 1],
            [0, 1, 0, 0, 1, 0, 0],
            [9, 0, 0, 0, 0, 1, 1],
            [4, 0, 0, 1, 0, 0, 0],
            [6, 0, 0, 1, 0, 0, 0],
            [5, 0, 0, 0, 1, 0, 1],
            [7, 0, 1, 0, 0, 0, 1],
        ]
    )


def test_missing_values_are_the_median_of_the_clients_training_rows(tmp_path):
    rng = np.random.default_rng(0)
    ages = np.where(rng.random(80) < 0.3, "", rng.integers(100, size=80).astype(str))
    colors = rng.choice(["red", "green", "blue", "blue", ""], 80)
    table = zip(
        ages, colors, rng.choice(["a", "b"], 80), rng.choice(["no", "yes"], 80), strict=True
    )
    text = "\n".join(["age,color,ward,died", *map(",".join, table)])
    flagged, filled = (rows_of(tmp_path, text, missing=how)[0] for how in ("indicator", "median"))
    for client in range(2):
        learned = flagged.train.x[flagged.train.rows[client]].numpy()
        median = np.median(learned[learned[:, 1] == 0, 0])
        commonest = np.eye(3)[learned[:, 2:5].sum(0).argmax()]
        for one, other in ((flagged.train, filled.train), (flagged.test, filled.test)):
            before, after = one.x[one.rows[client]].numpy(), other.x[other.rows[client]].numpy()
            unknown = before[:, [1, 5]] == 1
            assert unknown.any(0).all()
            np.testing.assert_array_equal(
                after[:, 0], np.where(unknown[:, 0], median, before[:, 0])
            )
            color = np.where(unknown[:, 1:], commonest, before[:, 2:5])
            np.testing.assert_array_equal(after[:, 1:], color)


def test_categories_are_declared_for_nodes(tmp_path):
    (tmp_path / "a.csv").write_text(TABLE)
    settings = WARDS | {"missing": "median"}
    with pytest.raises(DataError, match=r"died is text.*categories=died=A\|B"):
        read(f"csv:{tmp_path}/a.csv", client=1, **settings)
    known = "color=red|blue|green|pink; died=no|yes|unknown"
    data = read(f"csv:{tmp_path}/a.csv", client=1, categories=known, **settings)
    assert (data.kind.inputs, data.outputs) == ("float32[5]", 3)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (TABLE, {}, r"a\.csv: age is missing in row 2: set missing=median or missing=indicator"),
        (TABLE, {"target_column": "dead"}, "has no column 'dead'; it has age, color, ward, died"),
        (
            TABLE,
            {"task_column": "site", "missing": "median"},
            "partition natural needs a task column",
        ),
        (TABLE.replace("7,blue,b", "7,blue,"), {}, "ward is missing in row 7"),
        (TABLE.replace("yes", "", 1), {}, "died is missing in row 1"),
        (TABLE.replace(",no", ",0.5"), {"missing": "median"}, None),
        (TABLE, {"missing": "median", "categories": "color=red|blue"}, "got 'green' in row 4"),
        (TABLE, {"categories": "color"}, "categories must be columns with all their values"),
        ("died,ward\n0,a\n1,b\n", {}, "must have a column besides died to learn from"),
    ],
)
def test_refuses_tables_that_are_none(tmp_path, text, settings, message):
    if message is None:  # numbers beside text are text, and so classes
        assert rows_of(tmp_path, text, **settings)[0].outputs == 2
        return
    with pytest.raises(DataError, match=re.compile(message)):
        rows_of(tmp_path, text, **settings)


def test_truth_values_are_numbers_whether_or_not_some_are_missing(tmp_path):
    text = TABLE.replace("red", "True").replace("blue", "False").replace("green", "True")
    assert [9, 0, 0, 1, 1] in rows_of(tmp_path, text, missing="indicator")[1]
    assert {row[1] for row in rows_of(tmp_path, text, missing="median")[1]} == {0, 0.5, 1}


def test_numbers_are_predicted(tmp_path):
    text = TABLE.replace("no", "0.5").replace("yes", "2")
    data, _ = rows_of(tmp_path, text, missing="median", task="regression")
    assert sorted({*data.train.y.tolist(), *data.test.y.tolist()}) == [0.5, 2.0]


# --- Parquet, Arrow and the Hugging Face Hub ---------------------------------------------------

WRITERS = {"target_column": "character", "task_column": "writer_id", "input_columns": "image"}


def femnist():
    """Returns drawings of four writers, in the columns that FEMNIST has on the Hub."""
    from datasets import ClassLabel, Dataset, Features, Value
    from datasets import Image as Drawing

    pixels = np.random.default_rng(0).integers(0, 256, (80, 6, 7), dtype=np.uint8)
    kinds = {"image": Drawing(), "writer_id": Value("string"), "hsf_id": Value("int64")}
    columns = {
        "image": [Image.fromarray(drawing) for drawing in pixels],
        "writer_id": [f"f{row // 20:04}" for row in range(80)],
        "hsf_id": [0] * 80,
        "character": arrays_of(pixels)["y"].tolist(),
    }
    features = Features(kinds | {"character": ClassLabel(names=["a", "b", "c"])})
    return pixels, Dataset.from_dict(columns, features=features)


def stored(kind, rows, folder):
    """Writes a data set in one of the forms that are read."""
    import pyarrow as pa
    from datasets import DatasetDict

    path, table = folder / f"rows.{kind.partition(' ')[0]}", rows.with_format("arrow")[:]
    if kind == "parquet":
        rows.to_parquet(path)
    elif kind == "parquet folder":
        for part, some in (("train", range(60)), ("test", range(60, 80))):
            rows.select(some).to_parquet(path / f"{part}-00000-of-00001.parquet")
    elif kind == "arrow folder":
        rows.save_to_disk(path)
    elif kind == "arrow of parts":
        DatasetDict({"train": rows}).save_to_disk(path)
    else:
        new = pa.ipc.new_file if kind == "arrow file" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table)
    return f"{path.suffix[1:]}:{path}"


@pytest.mark.parametrize(
    "kind", ["parquet", "arrow folder", "arrow of parts", "arrow file", "arrow stream"]
)
def test_columns_are_the_rows_of_memory(tmp_path, kind):
    pixels, rows = femnist()
    one = read(write_npz(tmp_path / "a.npz", **arrays_of(pixels)))
    two = read(stored(kind, rows, tmp_path), **WRITERS)
    assert dict(two.names) == {client: f"f{client:04}" for client in range(4)}
    assert (two.kind, two.outputs) == (one.kind, 3)
    for held, drawn in ((one.train, two.train), (one.test, two.test)):
        assert [r.tolist() for r in held.rows] == [r.tolist() for r in drawn.rows]
        some = torch.tensor([[3, 0, 3], [1, 7, 2]])
        for a, b in zip(held.take(some), drawn.take(some), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_parts_of_a_folder_of_parquet_are_training_and_test_rows(tmp_path):
    pixels, rows = femnist()
    order = np.random.default_rng(3).permutation(80)  # else the last writer were tested on alone
    dataset = stored("parquet folder", rows.select(order), tmp_path)
    data = read(dataset, **WRITERS)
    assert (len(data.train.y), len(data.test.y)) == (60, 20)
    assert [sorted(order[own] // 20) for own in data.train.rows] == [
        [client] * len(own) for client, own in enumerate(data.train.rows)
    ]
    x, _ = data.test.take(torch.arange(20))
    assert torch.equal(x[:, 0], torch.from_numpy(pixels[order[60:]]).float().mul_(1 / 255))


def test_a_data_set_of_the_hub_is_asked_for_by_its_name(tmp_path, monkeypatch):
    asked = []

    def load_dataset(*names, cache_dir):
        asked.append((names, cache_dir))
        return {"train": femnist()[1], "validation": femnist()[1]}

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    data = read("hf:flwrlabs/femnist", data_dir=str(tmp_path), **WRITERS)
    read("hf:flwrlabs/femnist:small", data_dir=str(tmp_path), **WRITERS)
    assert (data.kind.inputs, len(data.train.y) + len(data.test.y)) == ("float32[1,6,7]", 80)
    cache = str(tmp_path / "huggingface")
    names = [("flwrlabs/femnist", None), ("flwrlabs/femnist", "small")]
    assert asked == [(name, cache) for name in names]
    (tmp_path / "flwrlabs").mkdir()
    for name in ("flwrlabs", "flwrlabs:small"):
        with pytest.raises(DataError, match=f"hf:{name} must name a data set of the Hub"):
            read(f"hf:{name}", **WRITERS)


def test_characters_of_texts_are_tokens(tmp_path):
    from datasets import Dataset

    text = "to be, or not to be, that is the question: é" * 2  # é is two bytes
    columns = {
        "character_id": [f"play_{row // 20}" for row in range(80)],
        "x": [text[row % 30 :][:5] for row in range(80)],
        "y": [text[row % 30 + 5] for row in range(80)],
    }
    dataset = stored("parquet", Dataset.from_dict(columns), tmp_path)
    settings = {"task_column": "character_id", "task": "next-token", "model": "lstm"}
    data = read(dataset, **settings)
    assert (data.kind.inputs, data.outputs) == ("int64[5]", ord("u") + 1)
    x, y = everything(data.train)
    assert y[:, :-1].eq(-1).all()
    pairs = {(bytes(a.tolist()).decode(), chr(b)) for a, b in zip(x, y[:, -1], strict=True)}
    assert pairs <= set(zip(columns["x"], columns["y"], strict=True))
    columns["x"][7] = "éto b"
    data = read(stored("arrow stream", Dataset.from_dict(columns), tmp_path), **settings)
    words = (
        r"client play_0: row 7 cannot be read: .*x must be of shape \(5,\), as in row 0, got \(6,\)"
    )
    with pytest.raises(DataError, match=words):
        [everything(part) for part in (data.train, data.test)]


def test_several_columns_of_inputs(tmp_path):
    from datasets import Array2D, Dataset, Features, List, Value

    rng = np.random.default_rng(0)
    pixels, words = rng.integers(256, size=(80, 2, 3)), rng.integers(9, size=(80, 4))
    kinds = {"pixels": Array2D((2, 3), "uint8"), "words": List(Value("int32"))}
    features = Features(kinds | {"y": List(Value("float64")), "task": Value("int64")})
    y = rng.normal(size=(80, 2))
    columns = {"pixels": pixels, "words": words, "y": y, "task": np.repeat(range(4), 20)}
    rows = Dataset.from_dict({k: v.tolist() for k, v in columns.items()}, features=features)
    data = read(stored("parquet", rows, tmp_path), task="regression")
    assert (data.kind.inputs, data.outputs) == (
        '{"pixels": "float32[2,3]", "words": "int64[4]"}',
        2,
    )
    x, targets = everything(data.train)
    found = {
        tuple(words): (p * 255).round().int().tolist()
        for p, words in zip(x["pixels"], x["words"].tolist(), strict=True)
    }
    known = {tuple(w): p for w, p in zip(words.tolist(), pixels.tolist(), strict=True)}
    assert found.items() <= known.items()
    assert {tuple(row) for row in targets.tolist()} <= {tuple(r) for r in y.astype("f4").tolist()}


@pytest.mark.parametrize("kind", ["parquet", "parquet folder"])
def test_a_table_is_read_as_a_csv_file_is(tmp_path, kind):
    import pandas as pd
    from datasets import Dataset

    (tmp_path / "a.csv").write_text(TABLE)
    frame = pd.concat([pd.read_csv(tmp_path / "a.csv")] * 10, ignore_index=True)
    frame.to_csv(tmp_path / "a.csv", index=False)
    own = WARDS | {"missing": "indicator"}
    one = read(f"csv:{tmp_path}/a.csv", **own)
    two = read(stored(kind, Dataset.from_pandas(frame), tmp_path), **own)
    assert two.kind == one.kind
    if kind == "parquet":
        assert torch.equal(two.train.x, one.train.x)
    else:
        assert (len(two.train.y), len(two.test.y)) == (60, 20)


def test_clients_of_unequal_size_that_lack_classes(tmp_path):
    from datasets import Dataset

    rng, sizes = np.random.default_rng(0), (8, 40, 400)
    task = np.repeat(["small", "middle", "large"], sizes)
    y = np.where(task == "small", 0, np.where(task == "middle", rng.integers(1, 3, 448), 2))
    columns = {"a": rng.normal(size=448), "b": rng.normal(size=448), "y": y, "task": task}
    dataset = stored("arrow stream", Dataset.from_dict(columns), tmp_path)
    unequal = {"num_clients": 3, "partition": "natural", "clients_per_round": 3, "local_epochs": 1}
    e = small_of_any(dataset=dataset, method="fedavg", adapt_shots=2, num_rounds=2, **unequal)
    data = federated_data(e)
    found = {
        data.names[c]: set(data.train.y[rows].tolist()) for c, rows in enumerate(data.train.rows)
    }
    assert found == {"small": {0}, "middle": {1, 2}, "large": {2}}
    losses = [
        simulate(e, tmp_path / engine, engine=engine)["clients"]["loss"]
        for engine in ("vectorized", "sequential")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_columns_of_numbers_are_read_as_they_are_drawn(tmp_path):
    from datasets import Dataset

    columns = {f"x{k}": np.arange(80) + 100.0 * k for k in range(3)}
    columns |= {"y": np.arange(80) % 2, "task": np.repeat(range(4), 20)}
    columns["x1"][33] = np.nan
    data = read(stored("parquet", Dataset.from_dict(columns), tmp_path), input_columns="x0,x1")
    assert data.kind.inputs == "float32[2]"
    with pytest.raises(DataError, match=r"client 1: row 33 cannot be read: .*x must be finite"):
        [everything(part) for part in (data.train, data.test)]


def test_a_row_of_columns_that_cannot_be_read_is_named(tmp_path):
    from datasets import Image as Drawing

    _, rows = femnist()
    raw = rows.cast_column("image", Drawing(decode=False)).to_list()
    raw[25]["image"]["bytes"] = b"no image"
    broken = type(rows).from_list(raw, features=rows.features)
    data = read(stored("parquet", broken, tmp_path), **WRITERS)
    words = r"client f0001: row 25 cannot be read: \S*rows\.parquet: UnidentifiedImageError"
    with pytest.raises(DataError, match=words):
        [everything(part) for part in (data.train, data.test)]


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (lambda rows: rows, {"target_column": "label"}, r"rows\.parquet has no column 'label'; it"),
        (lambda rows: rows, {"input_columns": "image,ink"}, "has no column 'ink'; it has image"),
        (
            lambda rows: rows.select_columns(["character"]),
            {"input_columns": ""},
            "besides character",
        ),
        (
            lambda rows: rows.map(
                lambda row: {"writer_id": row["writer_id"] if row["hsf_id"] else None}
            ),
            {},
            r"writer_id is missing in row 0: a row needs one",
        ),
        (
            lambda rows: rows.remove_columns("writer_id"),
            {},
            "partition natural needs a task column",
        ),
    ],
)
def test_refuses_columns_that_are_none(tmp_path, change, settings, message):
    _, rows = femnist()
    dataset = stored("parquet", change(rows), tmp_path)
    with pytest.raises(DataError, match=message):
        read(dataset, **(WRITERS | settings))


def test_refuses_files_that_are_not_of_their_kind(tmp_path, capfd):
    (tmp_path / "bad").write_text("no table")
    with pytest.raises(DataError, match=r"rows\.arrow must hold some rows"):
        read(stored("arrow stream", femnist()[1].select([]), tmp_path), **WRITERS)
    for kind, name, message in (
        ("parquet", "bad", "cannot be read as parquet"),
        ("arrow", "bad", "cannot be read as arrow: ArrowInvalid"),
        ("arrow", "", "cannot be read as arrow: FileNotFoundError"),
        ("parquet", "none", "must be a file or a folder of parquet, and is not there"),
    ):
        with pytest.raises(DataError, match=message) as error:
            read(f"{kind}:{tmp_path / name}", **WRITERS)
        assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")
