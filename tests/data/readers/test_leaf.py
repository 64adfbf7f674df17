"""LEAF's files, as its ``preprocess.sh`` writes them."""

import json
from pathlib import Path

import numpy as np
import pytest

from engram.data.readers.leaf import LETTERS, read_leaf
from engram.runs.run import Run
from engram.settings.errors import DataError
from tests.cli.words import let
from tests.samples import entry


def write_leaf(folder, **parts):
    """Writes parts, each {user: (x, y)}, every user into a file of its own."""
    for part, users in parts.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number, (user, (x, y)) in enumerate(users.items()):
            held = {"users": [user], "num_samples": [len(y)], "user_data": {user: {"x": x, "y": y}}}
            path = folder / part / f"all_data_0_niid_05_keep_0_{part}_9-{number}.json"
            path.write_text(json.dumps(held))
    return folder


def writers(rng, count):
    return {
        name: (
            (rng.integers(0, 256, (count, 784)) / 255).tolist(),
            rng.integers(62, size=count).tolist(),
        )
        for name in ("f0000_14", "f0001_41", "f0002_02")
    }


def speakers(rng, count):
    text = "".join(rng.choice([*LETTERS], 80 + count))
    rows = [text[k : k + 80] for k in range(count)], [text[k + 80] for k in range(count)]
    return {f"THE_TRAGEDY_OF_{name}_HAMLET": rows for name in ("A", "B")}


def test_femnist_is_a_client_a_writer(engram, tmp_path):
    rng = np.random.default_rng(0)
    train, test = writers(rng, 12), writers(rng, 4)
    found = read_leaf(write_leaf(tmp_path / "femnist", train=train, test=test))
    assert found["x_train"].shape == (36, 1, 28, 28)
    assert np.array_equal(found["x_test"][5].ravel(), np.float32(test["f0001_41"][0][1]))
    assert found["y_test"].tolist() == [label for _, y in test.values() for label in y]
    words = let("dataset=leaf:femnist", "num-classes=62", "model=cnn", "hidden=8", "num-rounds=1")
    status, *_ = engram("run", "fedavg", *words, "--out", "run")
    assert status == 0
    run = Run.open(Path("run"))
    assert [*run.names.values()] == [*train]
    assert run.finished["clients"]["queries"] == [4, 4, 4]


def test_shakespeare_predicts_the_next_character_of_leafs_eighty(engram, tmp_path):
    rng = np.random.default_rng(1)
    train, test = speakers(rng, 12), speakers(rng, 5)
    found = read_leaf(write_leaf(tmp_path / "shakespeare", train=train, test=test))
    ((texts, following), *_) = train.values()
    assert len(LETTERS) == 80
    for row, (text, letter) in enumerate(zip(texts, following, strict=True)):
        assert found["x_train"][row].tolist() == [*map(LETTERS.find, text)]
        assert found["y_train"][row].tolist() == [*[-1] * 79, LETTERS.find(letter)]
    words = ("dataset=leaf:shakespeare", "num-classes=80", "model=lstm", "hidden=4,4")
    more = let(*words, "task=next-token", "num-rounds=1", "local-steps=1")
    assert engram("run", "fedavg", *more, "--out", "run")[0] == 0
    assert Run.open(Path("run")).finished["clients"]["queries"] == [5, 5]


def test_other_files_are_refused(tmp_path):
    for change, users in enumerate(
        (
            {"a": ([[1.0, 2.0], [3.0]], [0, 1])},
            {"a": ([[1.0], [2.0]], [0])},
            {"a": ([[1.0], [2.0]], [0, None])},
            {"a": (["to be"], ["~"])},
            {"a": (["to be", "or"], [" ", "n"])},
            {"\ud800": ([[1.0], [2.0]], [0, 1])},
            {"a": ([[1.0]], [0]), "b": ([[1.0, 2.0]], [1])},
        )
    ):
        place = write_leaf(tmp_path / str(change), train=users, test=users)
        with entry(users), pytest.raises(DataError, match="must be LEAF's JSON"):
            read_leaf(place)
    with pytest.raises(DataError, match=r"none must have files \*\.json"):
        read_leaf(tmp_path / "none")
    with pytest.raises(DataError, match="File name too long"):
        read_leaf(tmp_path / ("x" * 9999))
