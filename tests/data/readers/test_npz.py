"""Archives of arrays: what they claim is not believed."""

import io
import struct
import zipfile

import numpy as np
import pytest

from engram.core import machine
from engram.data.readers.npz import read_npz
from engram.settings.errors import DataError
from tests.samples import entry
from tests.support import write_npz


def header(shape, descr="'<f8'"):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(path, data, how=zipfile.ZIP_DEFLATED, name="x.npy"):
    with zipfile.ZipFile(path, "w", how) as file:
        file.writestr(name, data)
    return path


def test_archives_of_numpy_are_read(tmp_path):
    arrays = {"x": np.ones((3, 2), order="F"), "y": np.arange(3), "n": np.array(["a", "é"])}
    arrays |= {"none": np.empty((0, 5)), "one": np.array(7)}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        found = read_npz(tmp_path / "a.npz")
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found[name], array)
            assert found[name].flags.writeable


FALSE = [
    header("(1099511627776,)") + b"\0" * 80,
    header("(1099511627776, 1099511627776)") + b"\0" * 80,
    header("(1099511627776,)", "'<U0'") + b"\0",
    header("(-1, -10)") + b"\0" * 80,
    header("(9,)") + b"\0" * 80,  # more than it claims
    header("(11,)") + b"\0" * 80,
    header("(10,)", "'|O'") + b"\0" * 80,
    header("(" * 5000),
    header("(10,)", "-" * 9000 + "1") + b"\0" * 80,
    header("(10,)", "[1, 2]") + b"\0" * 80,
    header("(10,)", "'x9'") + b"\0" * 80,
    b"\x93NUMPY\x09\x00" + header("(10,)")[8:] + b"\0" * 80,
    b"\x93NUMPY\x01\x00\xff\xff",
    b"hello",
    b"",
]


def test_false_claims_are_refused(tmp_path):
    for data in FALSE:
        path = archive(tmp_path / "a.npz", data)
        with entry(data), pytest.raises(DataError, match=r"must be an \.npz file of plain arrays"):
            read_npz(path)


def test_too_large_arrays_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    path = archive(tmp_path / "bomb.npz", header("(524288,)") + b"\0" * 2**22)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(machine, "available", lambda device: 2**21)
    with pytest.raises(DataError, match=r"bomb.npz needs 0.00391 GiB, and 0.00195 GiB are free"):
        read_npz(path)


def test_rows_that_need_all_that_is_free_leave_no_room_for_a_run(tmp_path, monkeypatch):
    path = archive(tmp_path / "bomb.npz", header("(524288,)") + b"\0" * 2**22)
    monkeypatch.setattr(machine, "_OWN", 2**21)
    monkeypatch.setattr(machine, "available", lambda device: 5 * 2**20)
    with pytest.raises(DataError, match=r"bomb.npz needs 0.00586 GiB, and 0.00488 GiB are free"):
        read_npz(path)


def test_memory_that_runs_out_is_no_fault_of_the_file(tmp_path, monkeypatch):
    path = archive(tmp_path / "a.npz", header("(10,)") + b"\0" * 80)

    def read_array(stream, **_):
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr(np.lib.format, "read_array", read_array)
    with pytest.raises(DataError, match=r"a.npz needs more than the .* GiB that are free: use few"):
        read_npz(path)


def test_every_kind_of_broken_archive_is_refused(tmp_path):
    whole = {}
    for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        stream = io.BytesIO()
        np.lib.format.write_array(stream, np.arange(50.0))
        whole[how] = archive(tmp_path / "a.npz", stream.getvalue(), how).read_bytes()
    for data in whole.values():
        for place in range(0, len(data), 7):
            broken = bytearray(data)
            broken[place] ^= 0xFF
            for written in (bytes(broken), data[:place]):
                (tmp_path / "b.npz").write_bytes(written)
                try:
                    found = read_npz(tmp_path / "b.npz")
                except DataError:
                    continue
                assert all(len(array) == 50 for array in found.values())  # a date, or the name


def test_an_encrypted_archive_is_refused(tmp_path):
    path = archive(tmp_path / "a.npz", header("(10,)") + b"\0" * 80)
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="must be an"):
        read_npz(path)


def test_many_arrays_are_refused(tmp_path):
    with pytest.raises(DataError, match="must be an"):
        read_npz(tmp_path / write_npz(tmp_path / "a.npz", **{f"a{i}": i for i in range(1001)})[4:])
