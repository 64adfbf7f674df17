"""Code of the current folder: none is run that nobody has named, whatever its name."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from engram.cli.cli import COMMANDS
from engram.home.onnx_sandbox import USUAL, run_apart
from engram.link.node.worker import Worker
from engram.settings.process_starts import safe_path
from tests.link.wire.processes import PATIENCE

TRAINING_OR_SERVING = {
    *("run", "compare", "benchmark", "tune", "reproduce", "data", "export", "adapt", "new", "app"),
    "audit",
    *("federation", "init-federation", "superlink", "register", "remove", "node"),
    *("schema", "statistics", "evaluate", "withdraw"),
}
DECOYS = (
    *("multiprocessing", "socket", "pickle", "json", "random", "logging", "signal", "threading"),
    *("selectors", "struct", "subprocess", "tempfile", "joblib", "numpy", "pydantic", "typer"),
)


@pytest.fixture
def decoys(tmp_path, monkeypatch):
    """A working directory with modules that leave a mark where they are imported."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    for name in DECOYS:
        mark = tmp_path / f"{name}-ran"
        code = f"open({str(mark)!r}, 'w').close()\nraise SystemExit('a decoy ran')\n"
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


def marks(folder):
    return sorted(path.name for path in folder.glob("*-ran"))


def test_the_environment_is_put_back(monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    first, second = safe_path(), safe_path()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # calls in threads end in any order
    assert os.environ["PYTHONSAFEPATH"] == "1"
    second.__exit__(None, None, None)
    assert "PYTHONSAFEPATH" not in os.environ
    monkeypatch.setenv("PYTHONSAFEPATH", "yes")
    with safe_path():
        pass
    assert os.environ["PYTHONSAFEPATH"] == "yes"


def test_commands_that_look_load_nothing_that_the_folder_names(engram, plug_ins):
    Path("mine.py").write_text("open('mine-ran', 'w').close()\n")
    Path("pyproject.toml").write_text('[tool.engram]\nplugin = "mine"\n')
    looking = COMMANDS.keys() - TRAINING_OR_SERVING
    assert {"report", "runs", "show", "predict"} <= looking
    for command in sorted(looking):
        engram(command, "none", "none")
        assert not Path("mine-ran").exists(), command
    _, _, err = engram("run", "none")
    assert err.startswith("engram: the pyproject.toml in this folder has plug-ins loaded: mine\n")
    assert Path("mine-ran").exists()


def test_a_looking_command_takes_a_plug_in_that_is_given(engram, plug_ins):
    Path("mine.py").write_text("open('mine-ran', 'w').close()\n")
    assert engram("--plugin", "mine", "methods")[0] == 0
    assert Path("mine-ran").exists()


@pytest.mark.processes
def test_a_nodes_worker_imports_nothing_from_its_folder(decoys):
    worker = Worker({})
    worker._pipe.close()  # it ends when it has loaded all and reads on
    worker._process.join(PATIENCE)
    assert worker._process.exitcode == 0
    worker._thread.shutdown()
    assert marks(decoys) == []


@pytest.mark.processes
def test_a_graphs_process_imports_nothing_from_its_folder(decoys):
    one = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows"])
    two = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows"])
    same = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "graph", [one], [two])
    opset = helper.make_opsetid("", 18)
    data = helper.make_model(same, opset_imports=[opset], ir_version=9).SerializeToString()
    with run_apart(data, USUAL) as runs:
        assert runs({"x": np.ones(2, dtype="float32")}).tolist() == [-1.0, -1.0]
    assert marks(decoys) == []


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [
        ("runs", "."),
        (
            *("tune", "fedavg", "local", "--trials", "1", "--seeds", "1", "--processes", "2"),
            *("-snum-rounds=1", "-shidden=4", "--out", "found"),
        ),
    ],
    ids=lambda words: words[0],
)
def test_no_command_imports_from_its_folder(decoys, words):
    engram = Path(sys.executable).parent / "engram"
    done = subprocess.run([engram, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert marks(decoys) == []
