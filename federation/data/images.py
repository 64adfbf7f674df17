"""Folders of images as a data set: FOLDER/CLIENT/CLASS/FILE, or FOLDER/CLASS/FILE.

An image is decoded when it is drawn; before that only the names of files are looked at.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from federation.data.lazy import Lazy, RowNumbers
from federation.errors import DataError
from federation.files import open_file

CLASS: Final = "class"  # what its classes are declared as
_SUFFIXES: Final = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}


def read_images(folder: Path) -> dict[str, npt.NDArray[Any] | Lazy]:
    """Returns images ``x``, their classes ``y`` and, where there are clients, ``task``.

    Args:
        folder: The folder.

    Raises:
        DataError: If there are no images, or the first cannot be read.
    """
    flat, deep = (_images(folder, pattern) for pattern in ("*/*", "*/*/*"))
    if bool(flat) == bool(deep):
        raise DataError(
            f"{folder} must hold images as CLASS/FILE or, of several clients, as CLIENT/CLASS/FILE"
        )
    files = flat or deep
    y = np.array([file.parent.name for file in files])
    tasks = {"task": np.array([file.parent.parent.name for file in files])} if deep else {}
    return {"x": decoded_images(files), "y": y, **tasks}


def images_in(folder: Path) -> list[Path]:
    """Returns the images in a folder, and in those below it.

    Raises:
        DataError: If there are none.
    """
    files = _images(folder, "**/*")
    if not files:
        raise DataError(f"{folder} must hold images, or a file x.npy, and holds neither")
    return files


def decoded_images(files: Sequence[Path]) -> Lazy:
    """Returns images, each of which is decoded when it is drawn.

    Raises:
        DataError: If the first cannot be read.
    """
    try:
        first = _decoded(files[0], "")
    except DataError as error:
        raise DataError(f"image cannot be read: {error}") from error
    mode = "L" if first.ndim == 2 else "RGB"

    def read(numbers: RowNumbers) -> npt.NDArray[np.uint8]:
        images = [_decoded(files[number], mode) for number in numbers.tolist()]
        for number, image in zip(numbers.tolist(), images, strict=True):
            if image.shape != first.shape:
                width, height = first.shape[1::-1]
                raise DataError(
                    f"{files[number]} must be {width} x {height} pixels, as {files[0]} is, got "
                    f"{image.shape[1]} x {image.shape[0]}"
                )
        return np.stack(images)

    return Lazy(read, first[None], np.arange(len(files)))


def _images(folder: Path, pattern: str) -> list[Path]:
    found = (path for path in folder.glob(pattern) if path.suffix.lower() in _SUFFIXES)
    return sorted(path for path in found if not path.name.startswith("."))


def _decoded(path: Path, mode: str) -> npt.NDArray[np.uint8]:
    """Returns grey levels (height, width), or colors (height, width, 3)."""
    from PIL import Image  # noqa: PLC0415 - slow to import, not always needed

    try:
        with open_file(path) as file, Image.open(file) as image:
            mode = mode or ("L" if image.mode in ("1", "L") else "RGB")
            return np.array(image.convert(mode))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is no image ({type(error).__name__})") from error
