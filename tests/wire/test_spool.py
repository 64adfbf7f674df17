"""Bytes beyond a limit lie in a file, and are what they were."""

import errno

import pytest

from engram.wire import mapped_arrays
from engram.wire.mapped_arrays import Spool


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(mapped_arrays, "LARGE", 10)


GIVEN = {"a": b"12345", "b": b"", "c": b"6789012", "d": b"x" * 1000, "e": b"\0\1"}


def spooled():
    spool = Spool()
    spool.update(GIVEN)
    return spool


def assert_is(spool, expected):
    assert dict(spool) == expected
    assert (len(spool), [*spool]) == (len(expected), [*expected])
    assert [*spool.values()] == [*expected.values()]
    assert all(name in spool for name in expected)


def test_what_was_put_in_comes_out():
    spool = spooled()
    assert_is(spool, GIVEN)
    for name in ("c", "a"):
        del spool[name]
    assert_is(spool, {name: GIVEN[name] for name in "bde"})
    spool["f"] = b"later"
    assert spool["f"] == b"later"
    for name in ("f", "d", "a"):  # what was in the file, or nowhere
        spool[name] = b"again"
        assert (spool[name], [*spool].count(name)) == (b"again", 1)
    for name in ("c", "nothing"):
        with pytest.raises(KeyError):
            spool[name]


def test_without_room_for_files_it_is_in_memory(monkeypatch):
    def full(*where, **how):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(mapped_arrays.tempfile, "TemporaryFile", full)
    spool = spooled()
    assert_is(spool, GIVEN)
    with pytest.raises(KeyError):
        spool["nothing"]


def test_a_file_that_takes_a_part_of_it_is_not_used_for_that(monkeypatch):
    spool = spooled()
    file = spool._file
    short = type("Short", (), {"seek": file.seek, "fileno": file.fileno, "write": lambda data: 3})
    monkeypatch.setattr(spool, "_file", short)
    spool["f"] = b"long enough"
    monkeypatch.setattr(spool, "_file", file)
    spool["g"] = b"in the file again"
    expected = GIVEN | {"f": b"long enough", "g": b"in the file again"}
    assert {name: spool[name] for name in expected} == expected
