"""Only regular files are read, and of bounded size; whatever else is there is refused at once."""

import os
import re
import shutil
import socket
import tomllib
from contextlib import chdir
from itertools import product
from pathlib import Path

import pytest

from engram.data.readers.csv_files import read_csv
from engram.data.readers.npz import read_npz
from engram.data.schema.columns import File
from engram.link.credentials import read_federation
from engram.link.keys import read_certificate
from engram.settings.errors import DataError, Refused
from engram.settings.files import parse_toml, read_file, read_json, stats_below
from engram.settings.fingerprint import source_root
from engram.settings.settings_files import read_settings
from tests.samples import entry
from tests.source import source_files


def read_table(path):
    return read_csv(path, File())


READERS = [read_npz, read_table, read_settings, read_json, read_certificate, read_federation]


def bind_socket(path):
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)  # in its folder: names of sockets are short


STRANGE = {
    "pipe": os.mkfifo,
    "socket": bind_socket,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "missing": lambda path: None,
}


def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    told = r"cannot be read: |is missing: |has no federation.toml: "
    for kind, make in STRANGE.items():
        path = tmp_path / kind / "federation.toml"
        path.parent.mkdir()
        make(path)
        for read in READERS:
            with entry(kind, read), pytest.raises(Refused, match=told):
                read(path)


def test_impossible_names_are_refused(tmp_path):
    for read, name in product(READERS[:-1], ["x" * 300, "a/" * 5000, "nul\0", "\ud800"]):
        with entry(read, name):
            with pytest.raises(Refused) as caught:
                read(tmp_path / name)
            assert len(str(caught.value)) <= 2000
            assert str(caught.value).isprintable()


def test_a_table_is_not_fetched(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_table(tmp_path / "http://127.0.0.1:1/x.csv")


def test_files_of_settings_are_small(tmp_path):
    path = tmp_path / "big.toml"
    path.write_bytes(b"#" * 2**20 + b"\n")
    with pytest.raises(Refused, match="cannot be read: Larger than 1048576 bytes"):
        read_settings(path)
    assert len(read_file(path)) == 2**20 + 1


DEEP, LONG = "[" * 100_000, "9" * 5000
NO_TOML = ["a =", f"a = {DEEP}", f"a = {LONG}", "a = " + "{b=" * 3000, "\xff", "a = \0"]
NO_OBJECT = [DEEP, LONG, "[]", "{", "\xff"]


def test_what_is_no_toml_or_no_json_object_is_one_short_line(tmp_path):
    path = tmp_path / "strange"
    rows = [(read_settings, "is not TOML: ", text) for text in NO_TOML]
    rows += [(read_json, "is damaged: ", text) for text in NO_OBJECT]
    for read, told, text in rows:
        with entry(read, text):
            path.write_text(text, encoding="latin-1")
            with pytest.raises(Refused, match=told) as caught:
                read(path)
            assert len(str(caught.value)) < 1000


PARTS = ["a", "'a.b'", '"a.b"', r'"\""', " a ", '\t"" ']
KEYS = ["{} = 1", "[{}]", "[[{}]]", " [ {} ]", "x = {{{} = 1}}", "x = {{y = 1, {} = 1}}"]


def test_a_key_takes_no_longer_than_it_is(monkeypatch):
    """Python's reader takes the square of its parts: 20,000 of them take six seconds."""
    for key in KEYS:
        for part in PARTS:
            with entry(key, part):
                deep, deepest = (
                    b"z = 1\n" + key.format(".".join([part] * count)).encode()
                    for count in (20_000, 32)
                )
                assert parse_toml(deepest) == tomllib.loads(deepest.decode())
                with monkeypatch.context() as patched:
                    patched.setattr(tomllib, "loads", None)  # it is not asked
                    with pytest.raises(ValueError, match="a key has more than 32 parts"):
                        parse_toml(deep)


def test_dots_of_values_are_no_parts():
    text = "x = '" + "a." * 1000 + "'\ny = [" + "1.5, " * 1000 + ']\nz = "' + "b.c " * 99 + '"'
    assert parse_toml(text.encode()) == tomllib.loads(text)


def test_toml_of_others_is_read_in_one_place():
    calls = {
        str(path.relative_to(source_root()))
        for path in source_files()
        if re.search(r"tomllib\.loads?\b", path.read_text())
    }
    ours = "engram/compare/suite/federations.py"  # whose file is ours
    assert calls == {"engram/settings/files.py", ours}


def test_room_is_made_for_what_a_file_has_and_not_for_what_it_may_have(tmp_path):
    (tmp_path / "file").write_bytes(b"small")
    assert read_file(tmp_path / "file", most=2**60) == b"small"


def test_files_that_are_removed_while_they_are_counted_are_passed_over(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for size in (1, 2):
            (tmp_path / name / str(size)).write_bytes(b"." * size)
    found = stats_below(tmp_path)
    first = next(found)
    shutil.rmtree(tmp_path)
    assert first.st_size in (1, 2)
    assert not [*found]
