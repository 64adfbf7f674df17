"""Blobs: what is there of them is not sent again."""

import hashlib
from pathlib import Path

import pytest

from engram.link.blobs import Blob, Part

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()


def test_content_is_stored_by_its_hash(tmp_path: Path) -> None:
    blob = Blob.write(tmp_path, [DATA[:100], memoryview(DATA)[100:]])
    assert (blob.digest, blob.size, bytes(blob.view())) == (DIGEST, len(DATA), DATA)
    assert b"".join(blob.chunks(0, 1000)) == DATA
    assert b"".join(blob.chunks(9999, 1000)) == DATA[9999:]
    assert [path.name for path in tmp_path.iterdir()] == [DIGEST]


def test_a_part_goes_on_from_what_is_there(tmp_path: Path) -> None:
    first = Part(tmp_path / "x", len(DATA), DIGEST)
    first.add(DATA[:5000])  # and its process is killed
    second = Part(tmp_path / "x", len(DATA), DIGEST)
    assert second.held == 5000
    second.add(DATA[5000:])
    assert bytes(second.finish().view()) == DATA


def test_other_content_than_was_promised_begins_anew(tmp_path: Path) -> None:
    part = Part(tmp_path / "x", len(DATA), DIGEST)
    part.add(b"?" * len(DATA))
    with pytest.raises(ValueError, match="hash"):
        part.finish()
    assert Part(tmp_path / "x", len(DATA), DIGEST).held == 0


def test_more_than_was_promised_is_refused(tmp_path: Path) -> None:
    part = Part(tmp_path / "x", 10, DIGEST)
    with pytest.raises(ValueError, match="10 bytes"):
        part.add(b"?" * 11)
