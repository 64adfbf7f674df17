"""`engram new`: a project whose commands all run, and what is refused with nothing written."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engram.runs.run import Run
from engram.settings.fingerprint import source_root
from tests.samples import entry
from tests.settings.test_plugins import write
from tests.support import assert_same

pytestmark = pytest.mark.usefixtures("plug_ins")

README = (source_root() / "simulations" / "project" / "README.md").read_text()
(HERE,), (THERE,) = (
    re.findall(rf"^```{kind}\n(.*?)^```", README, re.DOTALL | re.M) for kind in ("sh", "bash")
)
COMMANDS = [line.split("#")[0].strip() for line in HERE.splitlines()]
# These start processes of Flower's: tests/simulations/test_ray.py, tests/processes/test_docs.py
ELSEWHERE = {"flwr run .", "engram federation"}


def project(engram, monkeypatch, name="hospitals"):
    """Makes a project, and goes into its folder."""
    assert engram("new", name) == (0, f"cd {name} && engram run\n", "")
    monkeypatch.chdir(name)
    return Path.cwd()


def test_it_is_a_project_of_that_name(engram, monkeypatch):
    folder = project(engram, monkeypatch)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {
        *("README.md", "pyproject.toml", "tests/test_method.py"),
        *(f"hospitals/{name}.py" for name in ("__init__", "apps", "data", "method", "model")),
    }
    assert not any("your_project" in (folder / name).read_text() for name in found)
    assert [path.name for path in folder.parent.iterdir()] == ["hospitals"]


@pytest.mark.processes
@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("python ")])
def test_its_tests_pass(engram, monkeypatch, line):
    project(engram, monkeypatch)
    command = [sys.executable, *shlex.split(line)[1:]]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout


QUICK = [line for line in COMMANDS if line.startswith("engram ") and line not in ELSEWHERE]


def test_the_commands_of_its_readme_run(engram, monkeypatch):
    folder = project(engram, monkeypatch)
    for line in QUICK:
        with entry(line):
            check_command(engram, folder, line)
            shutil.rmtree(folder / "runs", ignore_errors=True)


def check_command(engram, folder, line):
    _, *words = shlex.split(line)
    quick = [] if words == ["data"] else ["-snum-rounds=2", "--out=runs/it"]
    status, out, err = engram(*words, *quick)
    assert status == 0, err
    assert "sites" in out or "anchored" in out
    if words[0] == "compare":  # a page is for anybody, and loads nothing that the folder names
        assert out.endswith("\nnext: engram --plugin hospitals report runs/it\n")
        assert engram("--plugin", "hospitals", "report", "runs/it")[0] == 0
    for record in map(Run.open, {path.parent for path in folder.glob("runs/**/config.json")}):
        own = {"model": "Net", "dataset": "sites", "num-clients": 6}
        assert own.items() <= record.config["settings"].items()
        assert record.config["sources"][0].split()[-2] == "hospitals"


def test_its_settings_are_those_of_its_pyproject_unless_others_are_given(engram, monkeypatch):
    project(engram, monkeypatch)
    for name, words in {"one": [], "two": ["-smu=0"], "three": ["fedavg", "-sseed=0"]}.items():
        assert engram("run", *words, "-snum-rounds=3", f"--out={name}")[0] == 0
    one, two, three = (Run.open(Path(name)) for name in ("one", "two", "three"))
    assert one.config["settings"]["anchored.mu"] == 0.5
    assert "anchored.mu" not in three.config["settings"]
    models = [record.load_checkpoint().model for record in (one, two, three)]
    assert_same(models[1], models[2], atol=1e-6)  # without its term it is fedavg
    assert (models[0]["model/head.weight"] - models[1]["model/head.weight"]).abs().max() > 1e-3


def test_settings_of_a_folder_without_plug_ins_are_not_looked_at(engram):
    write("pyproject.toml", '[tool.flwr.app.config]\nmethod = "nothing"\n')
    assert engram("run", "fedavg", "-snum-rounds=1", "--out=run")[0] == 0


def test_settings_of_a_project_that_cannot_be_are_refused(engram):
    write("one.py", "")
    for table, words in [
        ("num-round = 3", "num-round is not a setting (did you mean num-rounds?)"),
        ("num-rounds = [3]", "num-rounds must be a valid integer, got [3]"),
        (
            "[tool.flwr.app.config.fedavg.momentum]\nx = 3",
            "fedavg.momentum in [tool.flwr.app.config] of pyproject.toml must be a number, text or",
        ),
    ]:
        own = f'[tool.engram]\nplugin = "one"\n[tool.flwr.app.config]\n{table}\n'
        write("pyproject.toml", own)
        status, _, err = engram("run", "fedavg", "--out=run")
        said, refusal = err.splitlines()
        assert (status, Path("run").exists()) == (2, False)
        assert said == "engram: the pyproject.toml in this folder has plug-ins loaded: one"
        assert words in refusal


def test_a_name_that_is_none_or_hides_something_is_refused(engram):
    none, hiding = ["a-b", "1x", "Big", "class", "x", "", "../x", "n" * 33], ["engram", "torch"]
    for name in [*none, *hiding, "lib"]:
        wanted = "one that hides no module, and no folder of a project"
        wanted = "a Python name, 2 to 32 small letters, digits and _" if name in none else wanted
        with entry(name):
            refused(engram, name, f"NAME must be {wanted}, got ")


def test_a_folder_that_is_there_is_refused(engram):
    Path("hospitals").mkdir()
    refused(engram, "hospitals", "hospitals is there already: name a new folder")


def test_nothing_is_left_where_writing_fails(engram, monkeypatch):
    def full(path, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    refused(engram, "hospitals", "hospitals cannot be made: No space left on device")


def refused(engram, name, words):
    before = sorted(Path().iterdir())
    status, out, err = engram("new", "--", name)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
    assert sorted(Path().iterdir()) == before
