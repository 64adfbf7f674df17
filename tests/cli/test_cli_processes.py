"""The engram command as a process: how it is ended, and what it imports."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engram.runs.run import Run
from tests.cli.words import SETS
from tests.link.wire.processes import PATIENCE, until
from tests.simulations.jobs import alive

pytestmark = pytest.mark.processes


def start(*args, **how):
    engram = Path(sys.executable).parent / "engram"
    return subprocess.Popen([engram, *args], stderr=subprocess.PIPE, text=True, **how)


def test_a_pause_ends_when_it_is_told_to(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGRAM_REFUSAL_PAUSE", "600")
    process = start("node", "none", cwd=tmp_path)
    while "ending in 600 s" not in process.stderr.readline():
        assert process.poll() is None
    process.terminate()
    assert process.wait(PATIENCE) == 2


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_ended_from_outside_goes_on(engram, tmp_path, end):
    sets = [*SETS, "--set", "num-rounds=30", "--set", "memory=carry"]
    process = start("run", *sets, "--out", "ended", cwd=tmp_path)
    metrics = tmp_path / "ended" / "metrics.jsonl"
    until(lambda: metrics.is_file() and len(metrics.read_text().splitlines()) >= 5)
    process.send_signal(end)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == (130 if end == signal.SIGINT else -signal.SIGKILL), err
    if end == signal.SIGINT:
        assert "go on with: engram run --resume ended" in err
    assert Run.open(Path("ended")).results is None
    assert engram("run", "--resume", "ended")[0] == 0
    assert engram("run", *sets, "--out", "whole")[0] == 0
    one, other = (
        [{k: v for k, v in row.items() if k != "ms"} for row in Run.open(Path(name)).rows()]
        for name in ("whole", "ended")
    )
    assert one == other


def test_a_decoy_package_does_not_touch_the_command(tmp_path):
    for room in ("client", "engram", "federation", "server", "strategies", "simulations"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise SystemExit('the decoy ran')")
    process = start("run", *SETS, "--out", "run", cwd=tmp_path)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert (tmp_path / "run" / "results.json").is_file()
    assert Run.open(tmp_path / "run").results["rounds"] == 4


@pytest.mark.parametrize("found", ["engram-*", "engram-*/*"])  # they begin; they work
def test_ctrl_c_ends_all_processes_of_a_study_with_one_line(tmp_path, monkeypatch, found):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = ["reproduce", "molar-bandit", "--processes", "2", "--out", "run"]
    running = start(*command, cwd=tmp_path, start_new_session=True)
    until(lambda: any(tmp_path.glob(found)))
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, said
    assert "Traceback" not in said
    until(lambda: not alive(running.pid))
