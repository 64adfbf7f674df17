"""Images as rows: files in folders, FOLDER/CLIENT/CLASS/FILE or FOLDER/CLASS/FILE, and parts.

An image is decoded when it is drawn; before that the headers of some are looked at. It is as a
viewer shows it: turned as its EXIF says, a palette's numbers are colors, and what is transparent is
white, unless transparency is kept as a channel. Levels of 8 bits are uint8, those of 16 are shares
of 65535, and those of 32 are what they are.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from engram.data.image_axes import PART, TESTS, say_once
from engram.data.lazy import Images, RowNumbers, some_of
from engram.settings.errors import DataError, few_names
from engram.settings.files import open_file

CLASS: Final = "class"  # what its classes are declared as
_SUFFIXES: Final = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
_TRAIN: Final = "train"
_LEFT_OUT: Final = -1
_SIXTEEN: Final = np.float32(65535)
_T = TypeVar("_T")


def read_images(folder: Path, *, alpha: bool = False) -> dict[str, Any]:
    """Returns images ``x``, their classes ``y`` and, where there are clients, ``task``.

    Folders train and test, or val, above those of clients or of classes, are ``PART``.

    With ``alpha`` transparency is a channel.

    Raises:
        DataError: If there are no images, or one that is looked at cannot be read.
    """
    at_depth = [_images(folder, "*/" * depth + "*") for depth in (1, 2, 3)]
    files = max(at_depth, key=len) if sum(map(bool, at_depth)) == 1 else []
    folders = [[*file.relative_to(folder).parts[:-1]] for file in files]
    level = _level(folder, folders)
    parts = np.array([_part(own.pop(level)) if level >= 0 else _TRAIN for own in folders])
    if not files or len(folders[0]) > 2:
        raise DataError(
            f"{folder} must hold images as CLASS/FILE or, of several clients, CLIENT/CLASS/FILE, "
            "with folders train and test above either of them if wanted"
        )
    marks = _marks(folder, parts)
    there = np.flatnonzero(marks != _LEFT_OUT)
    y, owners = (np.array([own[k] for own in folders])[there] for k in (-1, 0))
    learned, marks = {*y[marks[there] == 0].tolist()}, marks[there]
    if strange := {*y.tolist()} - learned:
        others = few_names(np.unique(parts[there][marks > 0]).tolist())
        raise DataError(
            f"{folder}: {others} must hold the classes of {_TRAIN}, each in a folder of its name, "
            f"got {few_names(sorted(strange))}"
        )
    x = files_decoded(folder, [files[k] for k in there], alpha=alpha)
    found: dict[str, Any] = {"x": x, "y": y}
    if len(folders[0]) == 2:
        found["task"] = owners
    return {**found, PART: marks} if marks.any() else found


def _part(name: str) -> str:
    return {"training": _TRAIN, "testing": "test"}.get(name.lower(), name.lower())


def _level(folder: Path, folders: Sequence[Sequence[str]]) -> int:
    """Returns the level of folders that are parts; -1 if there is none.

    Raises:
        DataError: One is called as training rows are, and none of the others as test rows.
    """
    for level, names in enumerate([*zip(*folders, strict=True)][:-1]):
        there = {*map(_part, names)}
        if _TRAIN in there:
            if there == {_TRAIN} or there & {*TESTS}:
                return level
            given = few_names(sorted({*names}))
            wanted = f"must be folders {_TRAIN} and test, or val"
            raise DataError(f"{folder}: parts of the rows {wanted}, got {given}")
    return -1


def _marks(folder: Path, parts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Returns the part of each image, as ``PART``; that of some that are not read is said."""
    names = np.unique(parts).tolist()
    tests = [name for name in TESTS if name in names][:1]
    known = {_TRAIN: 0} | dict.fromkeys(tests, 1)
    known |= dict.fromkeys(sorted({*names} & {*TESTS} - {*tests}), 2)
    if others := [name for name in names if name not in known]:
        say_once(f"{folder}: {few_names(known)} are read, and not {few_names(others)}")
    return np.array([known.get(part, _LEFT_OUT) for part in parts.tolist()], dtype=np.int64)


def images_in(folder: Path) -> list[Path]:
    """Returns the images in a folder, and in those below it.

    Raises:
        DataError: If there are none.
    """
    files = _images(folder, "**/*")
    if not files:
        raise DataError(f"{folder} must hold images, or a file x.npy, and holds neither")
    return files


def _images(folder: Path, pattern: str) -> list[Path]:
    found = (path for path in folder.glob(pattern) if path.suffix.lower() in _SUFFIXES)
    hidden = "/."
    return sorted(path for path in found if hidden not in f"/{path.relative_to(folder)}")


def files_decoded(folder: Path, files: Sequence[Path], *, alpha: bool = False) -> Images:
    """Returns the images of files; for the rest see ``decoded_images``."""

    def opened(row: int) -> IO[bytes]:
        return open_file(files[row])

    return decoded_images(str(folder), lambda row: str(files[row]), len(files), opened, alpha=alpha)


def decoded_images(
    where: str,
    called: Callable[[int], str],
    count: int,
    opened: Callable[[int], IO[bytes]],
    *,
    alpha: bool,
) -> Images:
    """Images that are decoded when they are drawn.

    They are in color if some of those that are looked at are: see ``some_of``.

    Args:
        where: What messages call all of them.
        called: What they call the image of a number.
        count: How many there are.
        opened: Opens the image of a number.
        alpha: Whether transparency is a channel.

    Raises:
        DataError: If one that is looked at cannot be read, or has other bits than the first.
    """

    def load(row: int, use: Callable[[Image.Image], _T]) -> _T:
        try:
            with opened(row) as file, Image.open(file) as image:
                return use(image)
        except DataError as error:
            raise DataError(f"{called(row)} {error}") from error
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{called(row)} is no image ({type(error).__name__})") from error

    def decoded(row: int) -> npt.NDArray[Any]:
        return load(row, lambda image: _shown(where, image, look, alpha))

    def read(numbers: RowNumbers) -> npt.NDArray[Any]:
        images = [decoded(row) for row in numbers.tolist()]
        for row, image in zip(numbers.tolist(), images, strict=True):
            if image.shape != first.shape:
                width, height = first.shape[1::-1]
                raise DataError(
                    f"{called(row)} must be {width} x {height} pixels, as {called(0)} is, got "
                    f"{image.shape[1]} x {image.shape[0]}"
                )
        return np.stack(images)

    try:
        looks = [load(0, _look)]
        for row in filter(None, some_of(count).tolist()):
            try:
                looks.append(load(row, partial(_look, bits=looks[0].bits)))
            except DataError as error:
                if isinstance(error.__cause__, DataError):  # of the others whoever draws them says
                    raise
        look = _common(where, looks, alpha)
        first = decoded(0)
    except DataError as error:
        raise DataError(f"image cannot be read: {error}") from error
    return Images(read, first[None], np.arange(count))


class _Look(NamedTuple):
    """An image's look.

    Attributes:
        bits: Bits of a level: 8, 16 or 32.
        color: Whether it is in color.
        clear: Whether parts of it may be transparent.
        frames: Whether there are several.
    """

    bits: int
    color: bool
    clear: bool
    frames: bool


def _look(image: Image.Image, bits: int = 0) -> _Look:
    """Reads an image's header, before it is turned.

    ``bits`` are those of a level that it must have; 0 for any.

    Raises:
        DataError: It has others, or Pillow would cut its levels.
    """
    own = 16 if image.mode.startswith("I;16") else 32 if image.mode in ("I", "F") else 8
    if (image.mode, image.format) == ("I", "PNG"):  # older releases of Pillow
        own = 16
    if bits not in (0, own):
        raise DataError(f"must have {bits} bits a level, as the first has, got {own}")
    stored = "".join(str(tile[3]) for tile in getattr(image, "tile", ()))
    if own == 8 and ";16" in stored and image.format != "BMP":  # whose 16 are of three colors
        raise DataError("has 16 bits a color, of which Pillow reads 8: save it with 8")
    color = own == 8 and image.mode not in ("1", "L", "LA")
    if image.mode[0] == "P":
        color = bool(np.ptp(np.reshape(image.getpalette() or [], (-1, 3)), axis=1).any())
    frames = getattr(image, "is_animated", False) and image.format != "MPO"  # a phone's previews
    return _Look(own, color, own == 8 and image.has_transparency_data, frames)


def _common(where: str, looks: Sequence[_Look], alpha: bool) -> _Look:
    """The look that all images get, which is said where it is not their own."""
    color, clear, frames = (any(each) for each in [*zip(*looks, strict=True)][1:])
    grey, bits = sum(not own.color for own in looks), looks[0].bits
    notes = {
        "levels of 16 bits are shares of 65535": bits == 16,
        "levels of 32 bits are used as they are": bits == 32,
        f"{grey} of {len(looks)} looked at are grey, and read in color as others": color and grey,
        "where they are transparent they are white (images=alpha keeps it)": clear and not alpha,
        "of several frames the first is read": frames,
    }
    if told := "; ".join(note for note, holds in notes.items() if holds):
        say_once(f"{where}: of the images, {told}")
    return _Look(bits, color, clear, frames)


def _shown(where: str, image: Image.Image, look: _Look, alpha: bool) -> npt.NDArray[Any]:
    own = _look(image, look.bits)
    if own.color and not look.color:
        say_once(f"{where}: images in color are read as grey, as all were that were looked at")
    ImageOps.exif_transpose(image, in_place=True)
    return _levels(image, own._replace(color=look.color), alpha)


def pixels(image: Image.Image) -> npt.NDArray[Any]:
    """Returns the levels of a picture, (height, width) or (height, width, channels)."""
    look = _look(image)
    return _levels(image, look, look.clear)


def _levels(image: Image.Image, look: _Look, alpha: bool) -> npt.NDArray[Any]:
    if look.bits > 8:
        levels = np.array(image, dtype=np.float32)
        return levels / _SIXTEEN if look.bits == 16 else levels
    mode = "RGB" if look.color else "L"
    image = image.convert("RGBA" if look.clear else mode)
    if look.clear and not alpha:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert(mode + "A" * alpha))
