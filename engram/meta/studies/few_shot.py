"""Data sets of many classes, to make few-shot tasks of: Omniglot and CIFAR-100."""

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from engram.data.loading import fetch, load
from engram.data.readers.npz import read_npz
from engram.data.source import Source
from engram.settings.errors import DataError

_Pixels = npt.NDArray[np.uint8]
WAYS: Final = {"omniglot": 20, "cifar100": 5}  # classes of a task: Sec. 6.2 of the MOML paper
_SIDE: Final = 28  # pixels that a drawing's 105 are made to


class FewShot(NamedTuple):
    """Images by class.

    Attributes:
        name: The data set's.
        images: (classes, images of each, pixels), uint8: of 256 levels, 0 where nothing is drawn.
        ways: Classes of a task.
    """

    name: str
    images: _Pixels
    ways: int


def load_few_shot(dataset: str, data_dir: Path) -> FewShot:
    """Loads a data set by name.

    Omniglot is read from ``omniglot28.npz`` if there is one: ``x`` (n, height, width), uint8 with
    high ink, and ``y`` (n,), whose values are the classes. Else its drawings are torchvision's,
    resized to 28x28; classes and drawings are in the order of their files' names, the background
    set first. Of CIFAR-100 all images are taken, those that are called its test images as well:
    a task that is tested on has classes of its own, so none of its images is trained on.

    Args:
        dataset: ``omniglot`` or ``cifar100``.
        data_dir: Folder of torchvision's data sets, and where it downloads them to.

    Raises:
        DataError: If the data set is unknown, missing, or not what it should be.
    """
    if dataset not in WAYS:
        raise DataError(f"dataset must be one of {', '.join(WAYS)}, got {dataset!r}")
    if dataset == "cifar100":
        arrays = load(Source("cifar100"), data_dir=data_dir, test_fraction=0.0, seed=0)
        x = np.concatenate([arrays.x_train, arrays.x_test])
        y = np.concatenate([arrays.y_train, arrays.y_test])
    elif (path := data_dir / "omniglot28.npz").exists():
        x, y = _arrays(path)
    else:
        x, y = _drawings(data_dir)
    return FewShot(dataset, _by_class(dataset, x, y), WAYS[dataset])


def _by_class(dataset: str, x: _Pixels, y: npt.NDArray[Any]) -> _Pixels:
    classes, counts = np.unique(y, return_counts=True)
    if len(set(counts)) != 1:  # or nothing is there at all
        found = "none" if not len(counts) else f"{counts.min()} to {counts.max()}"
        raise DataError(f"{dataset} must have as many images of each class, got {found}")
    order = np.argsort(y, kind="stable")
    return x.reshape(len(y), -1)[order].reshape(len(classes), counts[0], -1)


def _arrays(path: Path) -> tuple[_Pixels, npt.NDArray[Any]]:
    arrays = read_npz(path)
    x, y = arrays.get("x", np.empty(0)), arrays.get("y", np.empty(0))
    if x.dtype != np.uint8 or x.ndim != 3 or y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
        raise DataError(
            f"{path} must hold images x (n, height, width), uint8, and their classes y (n,), "
            f"whole numbers; got {x.dtype} of shape {x.shape} and {y.dtype} of shape {y.shape}"
        )
    return x, y


def _drawings(data_dir: Path) -> tuple[_Pixels, npt.NDArray[Any]]:
    """Reads torchvision's folders, ``alphabet/character/drawing.png``, in an order of our own.

    torchvision numbers classes in the order in which the disk lists them.
    """
    characters: list[Path] = []
    files = "omniglot28.npz, or images_background.zip and images_evaluation.zip, and what is "
    files += "in them, in omniglot-py"
    for background in (True, False):
        part = fetch("Omniglot", data_dir, name="omniglot", files=files, background=background)
        characters += sorted(Path(part.target_folder).glob("*/*"))
    drawings = [sorted(character.glob("*.png")) for character in characters]
    images = [_drawing(file) for files in drawings for file in files]
    classes = [number for number, files in enumerate(drawings) for _ in files]
    return np.asarray(images, dtype=np.uint8), np.asarray(classes)


def _drawing(file: Path) -> _Pixels:
    try:
        with Image.open(file) as image:
            # Ink is 0 there. Lanczos is what the drawings of omniglot28.npz look like.
            small = image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    except (OSError, SyntaxError) as error:  # the second for a broken PNG
        raise DataError(f"{file} cannot be read: {type(error).__name__}") from error
    return 255 - np.asarray(small)
