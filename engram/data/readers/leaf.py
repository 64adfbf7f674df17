"""Federations in the format of LEAF (Caldas et al., 2018): files of JSON with the rows of users."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.data.readers.npz import reading
from engram.settings.errors import DataError
from engram.settings.files import read_file

_Array = npt.NDArray[Any]
LETTERS: Final = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
"""LEAF's characters of Shakespeare, each numbered by its place."""

_TOKENS: Final = {letter: number for number, letter in enumerate(LETTERS)}
_SIDE: Final = 28  # pixels of FEMNIST's images
_WANTED: Final = (
    'LEAF\'s JSON, {"user_data": {USER: {"x": [...], "y": [...]}}}: as many numbers a row, and '
    f"classes; or texts of one length in its {len(LETTERS)} characters, and the next one of each"
)


def read_leaf(folder: Path) -> dict[str, _Array]:
    """Reads ``train/*.json`` and ``test/*.json``, or ``*.json``, by an ``.npz`` file's names.

    Rows of 784 numbers are images (1, 28, 28). Texts are tokens, numbered as ``LETTERS``. Of their
    targets the last is the next character's token, and the others are -1.

    Raises:
        DataError: There are no such files, or one of them holds something else.
    """
    found: dict[str, _Array] = {}
    with reading(folder, _WANTED):
        parted = (folder / "train").is_dir()
        for part in ("train", "test") if parted else ("",):
            files = sorted((folder / part).glob("*.json"))
            if not files:
                wanted = "files *.json, as LEAF's preprocess.sh writes them"
                raise DataError(f"{folder / part} must have {wanted}")
            users = [user for file in files for user in _users(file)]
            for name, arrays in zip(("x", "y", "task"), zip(*users, strict=True), strict=True):
                found[f"{name}_{part}" if parted else name] = np.concatenate(arrays)
    return found


def _users(file: Path) -> list[tuple[_Array, _Array, _Array]]:
    """Returns each user's inputs and targets, and the user's name for each row."""
    with reading(file, _WANTED):
        users = json.loads(read_file(file))["user_data"]
        "".join(users).encode()  # refuses surrogates
        rows = {user: _rows(own["x"], own["y"]) for user, own in users.items() if own["y"]}
        return [(x, y, np.repeat(user, len(y))) for user, (x, y) in rows.items()]


def _rows(x: Any, y: Any) -> tuple[_Array, _Array]:
    if len(x) != len(y):
        raise ValueError("not a target for each row")
    if isinstance(x[0], str):
        tokens = np.array([[_TOKENS[letter] for letter in text] for text in x])
        targets = np.full_like(tokens, -1)
        targets[:, -1] = [_TOKENS[letter] for letter in y]
        return tokens, targets
    rows, classes = np.array(x, dtype=np.float32), np.array(y)
    if classes.dtype.kind not in "iuf":
        raise ValueError("not numbers")
    return rows.reshape(-1, 1, _SIDE, _SIDE) if rows.shape[1] == _SIDE**2 else rows, classes
