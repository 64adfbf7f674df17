"""The wheel: built from the source, installed elsewhere, and used in an empty folder."""

import json
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
import typer

from engram.settings.fingerprint import source_root
from tests.link.wire.processes import PATIENCE
from tests.source import ROOMS

pytestmark = pytest.mark.processes

SOURCE = (*ROOMS, "benchmarks", "pyproject.toml", "README.md")
SCRIPT = """#!{python}
import sys
from {module} import {name}
sys.exit({name}())
"""


def call(*words, cwd):
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Returns the programs of an environment that has the wheel, and not the source."""
    place = tmp_path_factory.mktemp("wheel")
    for name in SOURCE:
        path = source_root() / name
        if path.is_dir():
            shutil.copytree(path, place / name, symlinks=True)
        else:
            shutil.copy(path, place / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    call(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", "dist", ".", cwd=place)
    (wheel,) = (place / "dist").glob("*.whl")
    for name in SOURCE:
        path = place / name
        (shutil.rmtree if path.is_dir() else Path.unlink)(path)

    venv.create(place / "env", symlinks=True)
    call(*pip, "--python", place / "env", "install", "--no-deps", "--no-index", wheel, cwd=place)
    (packages,) = (place / "env" / "lib").glob("python*/site-packages")
    # What it depends on is this environment's; its links to our source are not followed there.
    (packages / "dependencies.pth").write_text(str(Path(typer.__file__).parents[1]))
    programs = place / "env" / "bin"
    for script in distribution("flwr").entry_points.select(group="console_scripts"):
        text = SCRIPT.format(python=programs / "python", module=script.module, name=script.attr)
        (programs / script.name).write_text(text)
        (programs / script.name).chmod(0o755)
    return programs


def test_it_runs_without_the_source(installed, tmp_path):
    where = "from engram import server, simulations; print(server.__file__, simulations.__file__)"
    files = call(installed / "python", "-c", where, cwd=tmp_path).split()
    assert all(Path(file).is_relative_to(installed.parent) for file in files)
    engram = installed / "engram"
    assert "pfedme" in call(engram, "methods", cwd=tmp_path)
    sets = ("--set", "num-rounds=2", "--set", "local-steps=1")
    found = call(engram, "run", "fedavg", *sets, "--out", "run", "--json", cwd=tmp_path)
    assert json.loads(found.splitlines()[-1])["methods"][0]["rounds"] == 2
    assert (tmp_path / "run" / "accuracy.png").is_file()
    call(engram, "compare", "fedavg", "pfedme", "--seeds", "1", *sets, cwd=tmp_path)


def test_it_has_no_package_that_users_do_not_import(installed):
    (packages,) = installed.parent.glob("lib/python*/site-packages")
    folders = {path.name for path in packages.iterdir() if path.is_dir()}
    assert folders == {"engram", f"engram-{version('engram')}.dist-info"}


def test_python_code_of_the_readme_runs(installed, tmp_path):
    readme = (source_root() / "README.md").read_text(encoding="utf-8")
    codes = re.findall(r"^```python\n(.*?)^```", readme, flags=re.DOTALL | re.MULTILINE)
    (code,) = (code for code in codes if "engram.simulate" in code)
    found = call(installed / "python", "-c", code, cwd=tmp_path)
    assert re.match(r"0\.\d+ dict_keys\(", found)
    assert (tmp_path / "runs").is_dir()


def test_it_has_the_presets_and_the_project_that_new_writes(installed):
    (packages,) = installed.parent.glob("lib/python*/site-packages")
    for folder in ("presets", "project", "flower_app"):
        there, ours = (root / "engram/simulations" / folder for root in (packages, source_root()))
        assert files(there) == files(ours)


def files(folder):
    found = (path.relative_to(folder) for path in folder.rglob("*.*") if path.is_file())
    return {path for path in found if not {"__pycache__", ".mypy_cache"} & {*path.parts}}


def test_it_runs_on_a_federation(installed, tmp_path):
    words = ("federation", "--clients", "2", "--set", "num-rounds=2", "--out", "fed", "--json")
    found = call(installed / "engram", *words, cwd=tmp_path)
    assert json.loads(found.splitlines()[-1])["methods"][0]["rounds"] == 2
