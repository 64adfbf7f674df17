"""Digests of data sets: of their bytes, read once for each size and time, and keyed at a site."""

import hashlib
import hmac
import os

import pytest

from engram.client.row_limits import own_digest
from engram.data.readers import digests as module
from engram.data.readers.digests import digest_of, rows_of
from engram.data.source import Source


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_a_digest_is_of_the_bytes_and_of_names_within_a_folder(tmp_path):
    (tmp_path / "cat").mkdir()
    for name in ("cat/2.png", "cat/1.png", "own.csv"):
        (tmp_path / name).write_bytes(name.encode())
    files = [f"file {sha(name.encode())} {name}\n".encode() for name in ("cat/1.png", "cat/2.png")]
    csv, folder = Source(f"csv:{tmp_path}/own.csv"), Source(f"images:{tmp_path}")
    expected = sha(f"file {sha(b'own.csv')}\n".encode())
    assert rows_of([csv]).digest == digest_of([csv]) == expected
    own = f"file {sha(b'own.csv')} own.csv\n".encode()
    assert rows_of([folder]).digest == sha(*files, own)
    key = b"k" * 32
    assert rows_of([csv], key).digest == hmac.digest(key, expected.encode(), "sha256").hex()


def test_unchanged_files_are_not_read_again(tmp_path, monkeypatch):
    path = tmp_path / "own.csv"
    path.write_bytes(b"a,y\n1,2\n")
    source = Source(f"csv:{path}")
    found = rows_of([source])
    time = path.stat().st_mtime_ns
    path.write_bytes(b"a,y\n1,3\n")
    os.utime(path, ns=(time, time))  # as copies do that keep the time
    assert found.now().digest == rows_of([source]).digest != found.digest
    path.write_bytes(b"a,y\n1,2\n")
    assert found.now().digest == found.digest
    again = found.now()
    module._digest_of.cache_clear()
    monkeypatch.setattr(module, "file_sha256", lambda path: pytest.fail("it was read again"))
    assert again.now() is again
    path.unlink()
    assert again.now() is again  # what is gone is not known
    assert rows_of([source]) is None
    monkeypatch.undo()
    os.mkfifo(path)
    assert rows_of([source]) is None  # it is not waited for
    assert rows_of([Source("digits"), Source("sparse-linear")]) is None


def test_a_sites_digest_confirms_no_guess_of_its_table(tmp_path):
    (tmp_path / "own.csv").write_bytes(b"a,y\n1,2\n")
    sources = [Source(f"csv:{tmp_path}/own.csv")]
    states = [tmp_path / name for name in "ab"]
    for state in states:
        state.mkdir()
    one, other = (own_digest(sources, state) for state in states)
    assert one == own_digest(sources, states[0])
    assert len({one, other, digest_of(sources)}) == 3
    assert (states[0] / "rows.key").stat().st_mode & 0o777 == 0o600
