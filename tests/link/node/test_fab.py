"""App bundles that are not what they claim to be."""

import struct
import tracemalloc
import zipfile
from io import BytesIO

import pytest

from engram.link.node.fab import read_project, read_run_config
from engram.settings.errors import Refused
from engram.settings.fingerprint import source_root
from engram.settings.settings_files import RUN_KEYS
from tests.samples import entry

MIB = 2**20


def bundle(project, *, method=zipfile.ZIP_DEFLATED, name="pyproject.toml"):
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("README.md", "an app")
        archive.writestr(name, project)
    return stream.getvalue()


def test_the_settings_are_the_apps_defaults_and_what_the_run_overrides():
    project = (source_root() / "pyproject.toml").read_bytes()
    assert read_project(bundle(project)) == project
    usual = dict.fromkeys(("engram", *RUN_KEYS), "")
    assert read_run_config(project, {}) == usual
    assert read_run_config(project, {"num-rounds": 5}) == usual | {"num-rounds": 5}
    with pytest.raises(Refused, match="Key 'alhpa' is not present"):
        read_run_config(project, {"alhpa": 0.5})


def claims(data, size):
    """The same archive, whose directory says that its last file has so many bytes."""
    at = data.rindex(b"PK\x01\x02") + 24
    return data[:at] + struct.pack("<I", size) + data[at + 4 :]


def test_a_bundle_takes_no_more_room_than_it_may():
    for made, says in [
        (lambda: bundle(b"#" * 99 * MIB), "has a pyproject.toml of more than 1048576 bytes"),
        (lambda: claims(bundle(b"#" * 99 * MIB), 10), "is not an archive with|of more than"),
        (lambda: bundle(b"#" * 50 * MIB, method=zipfile.ZIP_BZIP2), "neither stored nor deflated"),
        (lambda: bundle(b"#" * 50 * MIB, method=zipfile.ZIP_LZMA), "neither stored nor deflated"),
        (lambda: b"x" * (10 * MIB + 1), "has 10485761 bytes, more than 10485760"),
        (lambda: bundle(b"", name="setup.py"), "is not an archive with a pyproject.toml: KeyError"),
        (lambda: b"", "is not an archive with a pyproject.toml: BadZipFile"),
        (lambda: bundle(b"a = 1")[:-30], "is not an archive with a pyproject.toml: BadZipFile"),
    ]:
        with entry(made, says):
            data = made()
            tracemalloc.start()
            try:
                with pytest.raises(Refused, match=says):
                    read_project(data)
                assert tracemalloc.get_traced_memory()[1] < 8 * MIB
            finally:
                tracemalloc.stop()


def test_a_project_that_cannot_be_read_is_refused_in_a_line():
    deep = [b"x = " + b"[" * 5000, b"x = " + b"{a=" * 5000]
    odd = [b"tool = 1", b"[tool.flwr.app]\nconfig = 3", b"[tool.flwr.app.config]\nx = [1]"]
    says = r"the run's pyproject\.toml cannot be read"
    for project in [*deep, *odd, b"\xff", b""]:
        with entry(project):
            with pytest.raises(Refused, match=says) as caught:
                read_run_config(project, {})
            assert len(str(caught.value)) < 400
            assert "\n" not in str(caught.value)
