"""Few-shot data sets load by class, and what is not one is refused by name."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engram.meta.studies.few_shot import load_few_shot
from engram.networks.vision import torchvision
from engram.settings.errors import DataError
from tests.data.readers.test_sources import write_cifar
from tests.samples import entry
from tests.support import write_npz


def test_own_arrays_are_sorted_by_class(tmp_path):
    # 40 images of 2x3 pixels of each of three classes, in no order; an image is full of its number,
    # and the numbers of a class are those with its remainder.
    number = np.random.default_rng(0).permutation(120)
    x = np.tile(number.astype(np.uint8)[:, None, None], (1, 2, 3))
    write_npz(tmp_path / "omniglot28.npz", x=x, y=(number % 3).astype(np.int16))
    data = load_few_shot("omniglot", tmp_path)
    assert (data.name, data.ways) == ("omniglot", 20)
    assert data.images.shape == (3, 40, 6)
    assert data.images.dtype == np.uint8
    assert (data.images == data.images[..., :1]).all()
    for c in range(3):
        assert data.images[c, :, 0].tolist() == [n for n in number if n % 3 == c]


X, Y = np.zeros((4, 2, 3), dtype=np.uint8), np.array([0, 0, 1, 1])
NO_ARRAYS = [
    ({"x": X}, "must hold images .* and their classes y .*got uint8 of shape .* and float64"),
    ({"y": Y}, "must hold images"),
    ({"x": X.astype(float), "y": Y}, "must hold images .*got float64 of shape"),
    ({"x": X[:, 0], "y": Y}, r"must hold images .*got uint8 of shape \(4, 3\)"),
    ({"x": X, "y": Y[:3]}, r"must hold images .*int64 of shape \(3,\)"),
    ({"x": X, "y": Y + 0.5}, "must hold images"),
    ({"x": X, "y": np.array([0, 0, 0, 1])}, "as many images of each class, got 1 to 3"),
    ({"x": X[:0], "y": Y[:0]}, "as many images of each class, got none"),
]


def test_refuses_arrays_that_are_none(tmp_path):
    for arrays, message in NO_ARRAYS:
        with entry(arrays, message):
            write_npz(tmp_path / "omniglot28.npz", **arrays)
            with pytest.raises(DataError, match=message) as caught:
                load_few_shot("omniglot", tmp_path)
            assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="must be one of omniglot, cifar100, got 'mnist'"):
        load_few_shot("mnist", tmp_path)


# --- torchvision's formats, written small ------------------------------------------------------

CHARACTERS = (
    ("images_background", "Latin/character02"),
    ("images_background", "Latin/character01"),
    ("images_background", "Greek/character01"),
    ("images_evaluation", "Avesta/character01"),
)


@pytest.fixture
def omniglot(tmp_path, monkeypatch):
    """torchvision's folders; drawing j of character i is a square, 15 (i + 1) down, 15 j right."""
    kind = torchvision().datasets.Omniglot  # its digests are those of the real zip files
    monkeypatch.setattr(kind, "_check_integrity", lambda self: True)
    for i, (part, character) in enumerate(CHARACTERS):
        folder = tmp_path / "omniglot-py" / part / character
        folder.mkdir(parents=True)
        for j in reversed(range(3)):
            pixels = np.ones((105, 105), dtype=bool)
            pixels[15 * (i + 1) : 15 * (i + 2), 15 * j : 15 * (j + 1)] = False  # ink is black
            Image.fromarray(pixels).save(folder / f"0001_{j:02}.png")
    return tmp_path


def test_drawings_become_small_and_white_on_black(omniglot):
    images = load_few_shot("omniglot", omniglot).images
    assert images.shape == (4, 3, 28 * 28)
    images = images.reshape(4, 3, 28, 28)
    # Greek comes before Latin, character01 before 02, the background set before the other.
    for c, i in enumerate((2, 1, 0, 3)):
        for j in range(3):
            inside = images[c, j, 4 * (i + 1) + 1 : 4 * (i + 2) - 1, 4 * j + 1 : 4 * (j + 1) - 1]
            assert inside.min() > 200
            # 15 of 105 pixels are 4 of 28; around them the filter leaves next to nothing.
            outside = images[c, j].astype(int)
            outside[4 * (i + 1) - 1 : 4 * (i + 2) + 1, max(4 * j - 1, 0) : 4 * (j + 1) + 1] = 0
            assert outside.max() < 20


def test_drawings_that_are_damaged_or_missing_are_said(omniglot):
    folder = omniglot / "omniglot-py"
    (folder / "images_evaluation/Avesta/character01/0001_01.png").write_text("hello")
    with pytest.raises(DataError, match=r"0001_01\.png cannot be read: UnidentifiedImageError"):
        load_few_shot("omniglot", omniglot)
    for files, found in (("*/Avesta/*/0001_01.png", "2 to 3"), ("*/*/*/*.png", "none")):
        for file in folder.glob(files):
            file.unlink()
        with pytest.raises(DataError, match=f"as many images of each class, got {found}"):
            load_few_shot("omniglot", omniglot)


def test_says_where_to_put_what_cannot_be_downloaded(tmp_path, monkeypatch):
    def no_network(self):
        Path(self.root).mkdir(parents=True)
        raise OSError("no network")

    for kind in ("CIFAR100", "Omniglot"):
        monkeypatch.setattr(getattr(torchvision().datasets, kind), "download", no_network)
    for dataset, files in (("omniglot", "omniglot28.npz, or"), ("cifar100", "the folder")):
        with pytest.raises(DataError) as caught:
            load_few_shot(dataset, tmp_path / "new")
        expected = rf"{dataset} is not in {tmp_path}/new and cannot be downloaded \(OSError\): "
        assert re.fullmatch(f"{expected}put {files}.* under {tmp_path}/new", str(caught.value))
        assert not (tmp_path / "new").exists()


def test_zip_files_that_were_not_unpacked_are_no_drawings(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision().datasets.Omniglot, "_check_integrity", lambda self: True)
    with pytest.raises(DataError, match=r"omniglot is not in .* and what is in them"):
        load_few_shot("omniglot", tmp_path)


def test_cifars_test_images_are_images_like_others(tmp_path, monkeypatch):
    cifar100 = torchvision().datasets.CIFAR100
    monkeypatch.setattr(cifar100, "_check_integrity", lambda self: True)
    monkeypatch.setattr(cifar100, "_load_meta", lambda self: None)
    folder = tmp_path / "cifar-100-python"
    write_cifar(folder, ["train"], {"fine_labels": [99, 3]})
    test = np.full((2, 3072), 7, dtype=np.uint8)
    (folder / "test").write_bytes(pickle.dumps({"data": test, "fine_labels": [3, 99]}))
    data = load_few_shot("cifar100", tmp_path)
    assert (data.name, data.ways) == ("cifar100", 5)
    assert data.images.shape == (2, 2, 3072)  # of 3 and of 99
    train = np.arange(2 * 3072, dtype=np.uint64).astype(np.uint8).reshape(2, 3072)
    assert (data.images[:, 0] == train[::-1]).all()
    assert (data.images[:, 1] == 7).all()
