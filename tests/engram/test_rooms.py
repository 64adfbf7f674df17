"""Somebody else's file where Python looks for one of our packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engram.rooms import check_rooms
from engram.settings.fingerprint import ROOMS, source_root


def engram(*words, **variables):
    return subprocess.run(
        [sys.executable, "-m", "engram", *words],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_our_own_are_found():
    check_rooms()


@pytest.mark.parametrize("name", ["client.py", "simulations.py", "server/__init__.py"])
def test_a_file_that_hides_one_is_named(name):
    # `python -m` imports from the working directory first, as it does for a script beside it.
    file = Path(name).absolute()
    file.parent.mkdir(exist_ok=True)
    file.write_text("raise SystemExit('it ran')")
    done = engram("run", "fedavg")
    package = name.removesuffix(".py").split("/")[0]
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"engram: {package} must be Engram's own package, ")
    assert done.stderr.count("\n") == 1
    assert f"got {file}: rename that file or folder, or take it out of" in done.stderr


def test_an_app_that_flower_has_unpacked_need_not_have_them_all():
    for room in ROOMS:
        shutil.copytree(source_root() / room, room)
    code = "import engram; print(engram.metric.__module__, engram.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"engram.scoring.metrics {Path.cwd()}/engram/__init__.py\n", done.stderr


def test_a_folder_of_python_path_is_seen(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "federation.py").touch()
    done = engram("--version", PYTHONPATH=str(other))
    assert done.returncode == 2
    assert str(other / "federation.py") in done.stderr


def test_a_folder_that_is_no_package_hides_nothing():
    Path("client").mkdir()
    done = engram("--version", PYTHONPATH=str(source_root()))
    assert (done.returncode, done.stderr) == (0, "")


EDITABLE = """
import sys
from importlib.machinery import PathFinder

class Editable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, path or [ours])

ours = sys.argv[1]
sys.path[:] = [place for place in sys.path if place != ours]
sys.meta_path.append(Editable)  # as pip does: it is asked after all folders
from engram.__main__ import main
sys.argv[1:] = ["--version"]
main()
"""


def test_before_an_editable_installation_it_hides_one_and_is_named():
    line = [sys.executable, "-c", EDITABLE, str(source_root())]
    for name, status in (("other", 0), ("strategies", 2)):
        Path(name).mkdir()
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
    assert done.stderr.startswith("engram: strategies must be Engram's own package, ")
    assert f"got {Path('strategies').absolute()}: rename that file or folder, or" in done.stderr
