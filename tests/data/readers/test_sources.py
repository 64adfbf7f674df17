"""Data sets load, and what is not one is refused by name."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from engram.data.loading import load
from engram.data.source import Source
from engram.settings.errors import DataError
from tests.samples import entry
from tests.support import write_npz


def read(dataset, data_dir="data", test_fraction=0.4, seed=0):
    return load(Source(dataset), data_dir=Path(data_dir), test_fraction=test_fraction, seed=seed)


def test_digits_are_all_there_once_and_split_within_classes():
    arrays = read("digits")
    assert arrays.x_train.shape[1:] == (1, 8, 8)
    together = np.concatenate([arrays.x_train, arrays.x_test]) * 16
    original = load_digits().images[:, None]
    one, other = (sorted(map(bytes, x.astype(np.uint8))) for x in (together, original))
    assert one == other
    share = np.bincount(arrays.y_test) / np.bincount(load_digits().target)
    assert np.abs(share - 0.4).max() < 0.01
    assert arrays.x_train.max() == 1.0


def test_the_split_depends_on_the_seed_alone():
    assert np.array_equal(read("digits").y_train, read("digits").y_train)
    assert not np.array_equal(read("digits").x_test, read("digits", seed=1).x_test)


def test_own_arrays_with_tasks(tmp_path):
    x = np.arange(40, dtype=np.float64).reshape(20, 2)
    name = write_npz(tmp_path / "a.npz", x=x, y=np.tile([0, 1], 10), task=np.repeat([7, 9], 10))
    arrays = read(name, test_fraction=0.2)
    assert arrays.x_train.dtype == np.float32
    assert np.bincount(arrays.task_test).tolist() == [2, 2]  # a fifth of each task of 10
    assert np.bincount(arrays.y_test).tolist() == [2, 2]
    rows = np.concatenate([arrays.x_train, arrays.x_test])[:, 0]
    assert sorted(rows) == x[:, 0].tolist()


def test_own_arrays_with_test_rows(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
    parts = {"x_train": images[:4], "y_train": [0, 1, 2, 0], "x_test": images[4:], "y_test": [1, 2]}
    arrays = read(write_npz(tmp_path / "a.npz", **parts))
    assert arrays.x_train.shape == (4, 3, 5, 4)  # channels first, as torch has them
    assert np.array_equal(arrays.x_test[0, 2], images[4, :, :, 2])
    assert arrays.x_train.dtype == np.uint8
    assert arrays.outputs == 3


GOOD = {"x": np.ones((6, 2)), "y": np.array([0, 1, 2, 0, 1, 2])}


NO_ARRAYS = [
    ({"x": None}, "must hold either x and y .*it holds y"),
    ({"x_train": np.ones(3)}, "must hold either x and y"),
    ({"x": np.ones((6, 0))}, r"x must be numbers, in rows, got float64 of shape \(6, 0\)"),
    ({"x": np.ones((6, 0, 4))}, "x must be numbers, in rows"),
    ({"x": np.ones((5, 2))}, r"x must have one row for each of the 6 entries of y, got .*5, 2"),
    ({"x": np.ones(6)}, "x must be numbers, in rows"),
    ({"x": np.full((6, 2), np.nan)}, "x must be finite, got nan in row 0"),
    ({"y": np.array([0.5] * 6)}, "y must be one class a row, got float64, 0.5 in row 0: set ta"),
    ({"y": np.zeros(6, dtype=[("a", "i4")])}, "y must be one class a row"),
    ({"y": np.zeros(6, dtype=int)}, "y must hold at least 2 classes, got one"),
    ({"task": np.zeros(3, dtype=int)}, "task must have one row for each"),
]


def test_refuses_arrays_that_are_none(tmp_path):
    for change, message in NO_ARRAYS:
        with entry(change, message):
            arrays = {key: value for key, value in (GOOD | change).items() if value is not None}
            with pytest.raises(DataError, match=message):
                read(write_npz(tmp_path / "a.npz", **arrays))


def test_refuses_files_that_are_none(tmp_path):
    with pytest.raises(DataError, match=r"none\.npz cannot be read: No such file"):
        read(f"npz:{tmp_path}/none.npz")
    x, y = np.ones((4, 2)), np.array([0, 1, 0, 1])
    name = write_npz(tmp_path / "b.npz", x_train=x, y_train=y, x_test=np.ones((4, 3)), y_test=y)
    with pytest.raises(DataError, match="x_train and x_test must hold rows alike"):
        read(name)
    for other in (np.array(1), np.zeros(4, "V4"), np.array(["a"] * 4), np.ones((4, 2))):
        name = write_npz(tmp_path / "c.npz", x_train=x, y_train=y, x_test=x, y_test=other)
        with pytest.raises(DataError, match="y_train and y_test must hold rows alike"):
            read(name)
    with pytest.raises(DataError, match=r"dataset must be one of digits, mnist, .*got 'mnits'"):
        read("mnits")


# --- torchvision's formats, written small ------------------------------------------------------


def write_mnist(root, name):
    """Writes the four IDX files, two rows each; see http://yann.lecun.com/exdb/mnist."""
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    for part, labels in (("train", [3, 1]), ("t10k", [0, 9])):
        images = bytes([0, 0, 8, 3, *(n for d in (2, 28, 28) for n in (0, 0, 0, d))])
        pixels = bytes(range(256)) * 6 + bytes(2 * 28 * 28 - 6 * 256)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images + pixels)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, *labels]))


def test_mnist_loads(tmp_path):
    for dataset, folder in (("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")):
        write_mnist(tmp_path, folder)
        arrays = read(dataset, tmp_path)
        assert (arrays.x_train.shape, arrays.x_train.dtype) == ((2, 1, 28, 28), np.uint8)
        assert arrays.x_train[0, 0, 0, :3].tolist() == [0, 1, 2]
        assert (arrays.y_train.tolist(), arrays.y_test.tolist()) == ([3, 1], [0, 9])


def write_cifar(folder, files, keys):
    folder.mkdir(parents=True)
    for file in files:
        pixels = np.arange(2 * 3072, dtype=np.uint64).astype(np.uint8).reshape(2, 3072)
        with (folder / file).open("wb") as stream:
            pickle.dump({"data": pixels, **keys}, stream)


def test_cifar_loads(tmp_path, monkeypatch):
    from torchvision.datasets import CIFAR10, CIFAR100

    for kind in (CIFAR10, CIFAR100):  # the digests are those of the real files
        monkeypatch.setattr(kind, "_check_integrity", lambda self: True)
        monkeypatch.setattr(kind, "_load_meta", lambda self: None)
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    write_cifar(tmp_path / "cifar-10-batches-py", files, {"labels": [4, 9]})
    fine, coarse = {"fine_labels": [99, 3]}, {"coarse_labels": [13, 8]}
    write_cifar(tmp_path / "cifar-100-python", ["train", "test"], fine | coarse)

    ten = read("cifar10", tmp_path)
    assert ten.x_train.shape == (10, 3, 32, 32)
    assert ten.x_train[0, 1, 0, :2].tolist() == [0, 1]  # the second plane starts at byte 1024
    assert ten.y_test.tolist() == [4, 9]
    assert read("cifar100", tmp_path).y_train.tolist() == [99, 3]
    superclasses = read("cifar100-coarse", tmp_path)
    assert (superclasses.y_train.tolist(), superclasses.outputs) == ([13, 8], 20)


def test_a_failed_download_says_where_to_put_the_files(tmp_path, monkeypatch):
    from torchvision.datasets import MNIST

    def no_network(self):
        raise RuntimeError("no network")

    monkeypatch.setattr(MNIST, "download", no_network)
    for folder in (tmp_path, tmp_path / "new"):
        words = f"mnist is not in {folder} and cannot be downloaded .*: put the four .* MNIST/raw"
        with pytest.raises(DataError, match=words):
            read("mnist", folder)
    assert not (tmp_path / "new").exists()
