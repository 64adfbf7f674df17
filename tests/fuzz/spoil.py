"""Ways to corrupt values, bytes, JSON and files."""

import json
import os
import random
import socket
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

from engram.wire.checksums import summed

HUGE: Final = (10**9, 2**31, 2**32, 2**40, 2**63, 10**12, 10**18, 10**30, 10**400, 16**5000)
_LONG: Final = "x" * 100_000
_SMALL: Final = (0, 1, 2, 3, -1, True)
_FLOATS: Final = (0.5, -0.5, 1e-300, 1e308, 1e309, -1e309, float("nan"), 0.1, 1.0, 7.5)
_TEXTS: Final = (
    *("", "x", "1", "0.5", "1e9", "nan", "0x10", "٣", "1_0", _LONG, "9" * 5000, "\0"),
    *("a\nengram: fine", "\x1b[2J", "\ud800", "é" * 300, "../" * 50, "[/red]", "{0} %s", "~", "/"),
)
_OTHERS: Final[tuple[Any, ...]] = (None, [], [1], {}, {"a": 1}, b"x", date(2026, 1, 1), [[]] * 1000)
VALUES: Final[tuple[Any, ...]] = (*HUGE, *_SMALL, *_FLOATS, *_TEXTS, *_OTHERS)


def value(rng: random.Random) -> Any:
    """Returns a random value of any type."""
    return rng.choice(rng.choice((HUGE, _SMALL, _FLOATS, _TEXTS, _OTHERS)))


def text(rng: random.Random) -> str:
    """Returns a random value as text."""
    found = value(rng)
    return hex(found) if type(found) is int and found.bit_length() > 9999 else str(found)


def _flip(rng: random.Random, data: bytes) -> bytes:
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 30, 1000))):
        place = rng.randrange(len(spoilt))
        spoilt[place] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def _replace(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    new = rng.choice(
        (b"\0" * 8, b"\xff" * 8, rng.randbytes(8), b"9" * 5000, b"[" * 5000, b'"', b"\n")
    )
    return data[:start] + new + data[start + rng.choice((0, 1, len(new))) :]


def _swap(rng: random.Random, data: bytes) -> bytes:
    one, other = sorted(rng.randrange(len(data)) for _ in "ab")
    return data[other:] + data[one:other] + data[:one]


_BYTES: Final[tuple[Callable[[random.Random, bytes], bytes], ...]] = (
    _flip,
    _flip,
    _replace,
    _swap,
    lambda rng, data: data[: rng.randrange(len(data))],
    lambda rng, data: data[rng.randrange(len(data)) :],
    lambda rng, data: data + rng.randbytes(20),
    lambda rng, data: data * 2,
    lambda rng, data: b"",
    lambda rng, data: rng.randbytes(rng.choice((1, 100, 5000))),
    lambda rng, data: b"\0" * len(data),
    lambda rng, data: data.decode("latin-1").encode("utf-16"),
    lambda rng, data: b"\xef\xbb\xbf" + data,
)


def spoil_bytes(rng: random.Random, data: bytes) -> bytes:
    """Returns corrupted bytes."""
    return rng.choice(_BYTES)(rng, data or b"x")


def spoil_json(rng: random.Random, found: Any, depth: int = 3) -> Any:
    """Removes, renames or replaces something in a JSON object or list, in place."""
    places = list(_places(found, depth))
    if not places:
        return value(rng)
    holder, key = rng.choice(places)
    what = rng.randrange(4)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[rng.choice(("", "x", "round", "../x"))] = holder.pop(key)
    else:
        new = value(rng)
        big = type(new) is int and new.bit_length() > 9999  # which JSON cannot write
        holder[key] = 1 if big else new
    return found


def _places(found: Any, depth: int) -> Sequence[tuple[Any, Any]]:
    if not depth or not isinstance(found, dict | list):
        return []
    keys = list(found) if isinstance(found, dict) else list(range(len(found)))
    inner = [place for key in keys for place in _places(found[key], depth - 1)]
    return [*((found, key) for key in keys), *inner]


def _json_file(rng: random.Random, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    number = rng.randrange(len(lines))
    contents = json.loads(lines[number])
    signed = isinstance(contents, dict) and contents.pop("crc32", None)
    contents = spoil_json(rng, contents)
    if signed and isinstance(contents, dict) and rng.random() < 0.9:
        contents = summed(json.loads(json.dumps(contents, default=str)))
    lines[number] = json.dumps(contents, default=str)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))  # which must be short


_KINDS: Final[tuple[Callable[[Path], object], ...]] = (
    os.mkfifo,
    Path.mkdir,
    _unix_socket,
    lambda path: path.symlink_to("nowhere"),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/dev/tty"),
    lambda path: None,
)


def spoil_file(rng: random.Random, path: Path) -> None:
    """Corrupts a file's contents, or puts something else in its place."""
    if rng.random() < 0.15:
        path.unlink()
        rng.choice(_KINDS)(path)
    elif path.suffix in (".json", ".jsonl") and rng.random() < 0.6 and path.stat().st_size:
        _json_file(rng, path)
    else:
        path.write_bytes(spoil_bytes(rng, path.read_bytes()))
