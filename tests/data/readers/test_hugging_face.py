"""Columns of Parquet, Arrow and the Hugging Face Hub as clients' rows."""

import io
import os
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Array2D, ClassLabel, Dataset, DatasetDict, Features, List, Value
from datasets import Image as Drawing
from PIL import Image

from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.data.loading import count_clients
from engram.data.source import Source
from engram.settings.errors import DataError, Refused
from engram.settings.experiment import Experiment
from engram.tune.runs import members_of
from tests.data.readers.test_own_data import arrays_of, everything, read
from tests.samples import entry, sampled
from tests.support import write_npz

WRITERS = {"target_column": "character", "task_column": "writer_id", "input_columns": "image"}


def femnist():
    """Returns drawings of four writers, in the columns that FEMNIST has on the Hub."""
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
    folder.mkdir(exist_ok=True)
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
    assert (two.kind, two.outputs) == (one.kind._replace(classes=("a", "b", "c")), 3)
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
    for client, own in enumerate(data.train.rows):
        assert set(order[own] // 20) <= {client}
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
    words = r"client play_0: row 7 cannot be read: .*x must be of shape \(5,\), .*, got \(6,\)"
    with pytest.raises(DataError, match=words):
        [everything(part) for part in (data.train, data.test)]


def test_several_columns_of_inputs(tmp_path):
    rng = np.random.default_rng(0)
    pixels, words = rng.integers(256, size=(80, 2, 3)), rng.integers(9, size=(80, 4))
    kinds = {"pixels": Array2D((2, 3), "uint8"), "words": List(Value("int32"))}
    features = Features(kinds | {"y": List(Value("float64")), "task": Value("int64")})
    y = rng.normal(size=(80, 2))
    columns = {"pixels": pixels, "words": words, "y": y, "task": np.repeat(range(4), 20)}
    rows = Dataset.from_dict({k: v.tolist() for k, v in columns.items()}, features=features)
    data = read(stored("parquet", rows, tmp_path), task="regression")
    inputs = '{"pixels": "float32[2,3]", "words": "int64[4]"}'
    assert (data.kind.inputs, data.outputs) == (inputs, 2)
    x, targets = everything(data.train)
    found = {
        tuple(words): (p * 255).round().int().tolist()
        for p, words in zip(x["pixels"], x["words"].tolist(), strict=True)
    }
    known = {tuple(w): p for w, p in zip(words.tolist(), pixels.tolist(), strict=True)}
    assert found.items() <= known.items()
    assert {tuple(row) for row in targets.tolist()} <= {tuple(r) for r in y.astype("f4").tolist()}


def test_columns_of_numbers_are_a_table(tmp_path):
    columns = {f"x{k}": np.arange(80) / 4 + 100.0 * k for k in range(3)}
    columns |= {"y": np.arange(80) % 2, "task": np.repeat(range(4), 20)}
    source = stored("parquet", Dataset.from_dict(columns), tmp_path)
    data = read(source, input_columns="x0,x1")
    assert data.kind.inputs == "float32[2]"
    columns["x1"][33] = np.nan
    source = stored("parquet", Dataset.from_dict(columns), tmp_path)
    with pytest.raises(DataError, match=r"x1 is missing in row 33: set missing=median"):
        read(source, input_columns="x0,x1")


MISSING = [
    ({"a": None}, "a,b", "a is missing in row 63: set missing=median or missing=indicator"),
    ({"a": np.nan}, "a,b", "a is missing in row 63: set missing=median or missing=indicator"),
    ({"a": None, "b": None}, "a,b", "a is missing in row 63, b is missing in row 63: set"),
    ({"b": None}, "b,list", "b is missing in row 63: a row needs one"),
    ({"list": None}, "list", "list is missing in row 63: a row needs one"),
    ({"list": [1, None]}, "list", "list is missing in row 63: a row needs one"),
    ({"pair": [1, None]}, "pair", "pair is missing in row 63: a row needs one"),
    ({"grid": [[1, 2], [None, 4]]}, "grid", "grid is missing in row 63: a row needs one"),
    ({"image": None}, "image", "image is missing in row 63: a row needs one"),
    ({"text": None}, "text", "text is missing in row 63: a row needs one"),
]


KINDS = ["parquet", "parquet folder", "arrow folder", "arrow stream"]


@pytest.mark.parametrize("kind", sampled(KINDS, ["parquet", "arrow stream"]))
def test_missing_values_are_refused_before_anything_is_drawn(tmp_path, kind):
    kinds = {"a": Value("float64"), "b": Value("int32"), "list": List(Value("int64"))}
    kinds |= {"pair": List(Value("float32"), length=2), "grid": List(List(Value("float32")))}
    kinds |= {"image": Drawing(), "text": Value("string"), "y": Value("int64")}
    kinds |= {"task": Value("int64")}
    picture = Image.fromarray(np.zeros((4, 5), "uint8"))
    row = {"a": 1.0, "b": 2, "list": [1, 2], "grid": [[1, 2], [3, 4]], "image": picture}
    row |= {"text": "ab", "pair": [1, 2]}
    rows = [{**row, "y": k % 2, "task": k % 4} for k in range(80)]
    for number, (change, inputs, words) in enumerate(MISSING):
        with entry(change, inputs, words):
            changed = [*rows[:63], rows[63] | change, *rows[64:]]
            table = Dataset.from_list(changed, features=Features(kinds))
            dataset = stored(kind, table, tmp_path / f"{number}")
            settings = {"task": "next-token", "model": "lstm"} if inputs == "text" else {}
            with pytest.raises(DataError, match=words):
                read(dataset, input_columns=inputs, **settings)


# --- Images --------------------------------------------------------------------------------------


def bytes_of(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("form", ["the hub's", "struct", "binary"])
def test_images_are_as_those_of_folders_with_and_without_the_hubs_metadata(tmp_path, form):
    for levels in ("uint8", "uint16"):
        most = np.iinfo(levels).max
        pixels = np.random.default_rng(0).integers(0, most, (80, 6, 7)).astype(levels)
        images = [*map(bytes_of, pixels)]
        images = images if form == "binary" else [{"bytes": c, "path": None} for c in images]
        columns = {"image": images, "y": np.arange(80) % 2, "task": np.repeat(range(4), 20)}
        if form == "the hub's":
            kinds = Features({"image": Drawing(), "y": Value("int64"), "task": Value("int64")})
            Dataset.from_dict(columns, features=kinds).to_parquet(tmp_path / f"{levels}.parquet")
        else:
            pq.write_table(pa.table(columns), tmp_path / f"{levels}.parquet")
        data = read(f"parquet:{tmp_path}/{levels}.parquet")
        assert data.kind.inputs == "float32[1,6,7]"
        for split in (data.train, data.test):
            x, expected = everything(split)[0][:, 0].numpy(), pixels[split.given] / most
            np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_images_among_several_inputs(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (80, 6, 7), dtype=np.uint8)
    columns = {"y": np.arange(80) % 2, "task": np.repeat(range(4), 20), "age": np.arange(80.0)}
    for name, levels in {"one": pixels, "two": 255 - pixels}.items():
        columns[name] = [{"bytes": bytes_of(x), "path": None} for x in levels]
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    for inputs in ("one,age", "one,two"):
        data = read(f"parquet:{tmp_path}/rows.parquet", input_columns=inputs)
        x, _ = everything(data.test)
        expected = pixels[data.test.given] / 255
        np.testing.assert_allclose(x["one"].numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(x["two"].numpy(), 1 - expected, atol=1e-6)


def test_a_row_of_columns_that_cannot_be_read_is_named(tmp_path):
    _, rows = femnist()
    raw = rows.cast_column("image", Drawing(decode=False)).to_list()
    raw[25]["image"]["bytes"] = b"no image"
    broken = type(rows).from_list(raw, features=rows.features)
    data = read(stored("parquet", broken, tmp_path), **WRITERS)
    words = r"client f0001: row 25 cannot be read: \S*rows\.parquet: image of row 25 is no image"
    with pytest.raises(DataError, match=words):
        [everything(part) for part in (data.train, data.test)]


NO_COLUMNS = [
    (lambda rows: rows, {"target_column": "label"}, r"rows\.parquet has no column 'label'; it"),
    (lambda rows: rows, {"input_columns": "image,ink"}, "has no column 'ink'; it has writer"),
    (
        lambda rows: rows.add_column("day", [date(2026, 1, 1)] * len(rows)),
        {"input_columns": "hsf_id,day"},
        r"column day .* looks like dates",
    ),
    (
        lambda rows: rows.add_column("list", [[1, 2]] * len(rows)),
        {"input_columns": "hsf_id", "target_column": "list", "missing": "median"},
        "list must be a number or a text in each row of a table",
    ),
    (
        lambda rows: rows.add_column("dict", [{"a": 1}] * len(rows)),
        {"target_column": "dict"},
        "dict must hold as many numbers in each row",
    ),
    (lambda rows: rows.remove_columns(["image", "hsf_id"]), {"input_columns": ""}, "besides char"),
    (lambda rows: rows.map(lambda _: {"writer_id": None}), {}, "writer_id is missing in row 0: a"),
    (lambda rows: rows.remove_columns("writer_id"), {}, "must have writer_id, as task-column says"),
]


def test_refuses_columns_that_are_none(tmp_path):
    _, rows = femnist()
    for number, (change, settings, message) in enumerate(NO_COLUMNS):
        with entry(change, settings, message):
            dataset = stored("parquet", change(rows), tmp_path / f"{number}")
            with pytest.raises(DataError, match=message):
                read(dataset, **(WRITERS | settings))


def test_refuses_files_that_are_not_of_their_kind(tmp_path, capfd):
    (tmp_path / "bad").write_text("no table")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"rows\.arrow must hold some rows"):
        read(stored("arrow stream", femnist()[1].select([]), tmp_path), **WRITERS)
    for kind, name, message in (
        ("parquet", "bad", "cannot be read as parquet"),
        ("arrow", "bad", "cannot be read as arrow: ArrowInvalid"),
        ("arrow", "", "cannot be read as arrow: FileNotFoundError"),
        ("parquet", "none", "must be a file or a folder of parquet, and is not there"),
        ("parquet", "pipe", "must be a file or a folder of parquet, and is neither"),
        ("arrow", "pipe", "must be a file or a folder of arrow, and is neither"),
    ):
        with pytest.raises(DataError, match=message) as error:
            read(f"{kind}:{tmp_path / name}", **WRITERS)
        assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("settings", "says"),  # as columns are read, and as rows are given out
    [({"target_column": "hsf"}, "hsf"), ({"num_clients": 5}, "num-clients must be")],
)
def test_a_refused_run_leaves_nothing_unpacked(tmp_path, settings, says):
    dataset = stored("parquet", femnist()[1], tmp_path)
    own = WRITERS | {"data_dir": str(tmp_path / "new" / "data")} | settings
    assert count_clients(Source(dataset), "writer_id", tmp_path / "new" / "data") == 4
    assert count_clients(Source(dataset), "nobody", tmp_path / "new" / "data") == 0
    with pytest.raises(DataError, match=says):
        read(dataset, **own)
    assert not (tmp_path / "new").exists()
    data = tmp_path / "data"
    read(dataset, **WRITERS | {"data_dir": str(data)})
    before = sorted(data.rglob("*"))
    assert any(path.suffix == ".arrow" for path in before)
    other = stored("parquet", femnist()[1].rename_column("hsf_id", "x"), tmp_path / "other")
    with pytest.raises(DataError, match=says):
        read(other, **own | {"data_dir": str(data)})
    assert sorted(data.rglob("*")) == before


def test_a_run_with_a_too_large_network_leaves_nothing_unpacked(tmp_path):
    dataset = stored("parquet", femnist()[1], tmp_path)
    data = tmp_path / "new" / "data"
    own = WRITERS | {"data_dir": str(data), "memory_budget": 1e-9, "method": "fedavg"}
    e = Experiment(dataset=dataset, **own)
    for begin in (lambda: host_of(Opening(e, RamStore())), lambda: members_of([e, e])):
        with pytest.raises(Refused, match="memory-budget"):
            begin()
        assert not (tmp_path / "new").exists()


def test_an_arrow_file_with_offsets_beyond_its_end_is_refused(tmp_path):
    table = pa.table({"x": ["one", "two", "three", "four"], "y": [0, 1, 0, 1]})
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), table.schema) as writer:
        writer.write_table(table)
    content = (tmp_path / "rows.arrow").read_bytes()
    offsets = np.array([0, 3, 6, 11, 15], dtype=np.int32).tobytes()
    assert content.count(offsets) == 1
    far = np.array([0, 3, 6, 2**30, 2**30 + 4], dtype=np.int32).tobytes()
    (tmp_path / "rows.arrow").write_bytes(content.replace(offsets, far))
    with pytest.raises(DataError, match=r"rows.arrow cannot be read as arrow: ArrowInvalid"):
        read(f"arrow:{tmp_path / 'rows.arrow'}", target_column="y")
