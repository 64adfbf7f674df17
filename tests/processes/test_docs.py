"""Documented commands of a federation between machines, with another port."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engram.runs.run import Run
from engram.settings.fingerprint import source_root
from tests.cli.test_new import THERE, project
from tests.link.wire.processes import PATIENCE, free_port
from tests.support import assert_same

pytestmark = pytest.mark.processes


def run_script(block, cwd):
    """Runs commands of a documented federation, on a port of their own; returns what they said."""
    lines = block.replace(":9092", f":{free_port()}").splitlines()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = ["bash", "-e", "-c", "\n".join(["trap 'kill $(jobs -p); wait' EXIT", *lines])]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    how |= {"cwd": cwd, "env": os.environ | {"PATH": path}}
    script = subprocess.Popen(words, start_new_session=True, **how)
    try:
        said, _ = script.communicate(timeout=PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
    return said


def test_the_documented_federation_runs(tmp_path):
    text = (source_root() / "docs" / "deployment.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    said = run_script(block, tmp_path)
    assert {"client-0", "client-1", "client-2"} <= {*re.findall(r"client-\d", said)}, said
    assert "local-moml" in said
    assert re.search(r"seconds-transfer +\d", said), said
    assert (tmp_path / "runs" / "fed" / "results.json").is_file()
    assert re.search(r"\W0\W+local-moml\W+20\W", said), said  # what serves client 0 there


@pytest.mark.usefixtures("plug_ins")
def test_a_new_projects_commands_for_machines_run_as_one_process(engram, monkeypatch):
    folder = project(engram, monkeypatch)
    assert engram("run", "--out=here")[0] == 0
    said = run_script(THERE, folder)
    assert "recorded in runs/fed" in said, said
    there, here = (Run.open(folder / name) for name in ("runs/fed", "here"))
    assert_same(there.load_checkpoint().model, here.load_checkpoint().model, atol=1e-6)
    losses = [record.results["clients"]["loss"] for record in (there, here)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert there.config["sources"] == here.config["sources"]
