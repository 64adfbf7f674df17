"""Output that cannot take a sign, or leads nowhere, ends no command and no run."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import engram.settings.logs
from engram.cli import console, progress
from engram.cli.__main__ import main
from engram.runs.writer import RunWriter
from tests.support import small

RUN = ["run", "fedavg", "--set", "num-rounds=2", "--set", "hidden=4", "--out"]


def ascii_stream():
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")


def called(*words):
    """Runs the command with ASCII streams; returns its status and what it printed."""
    before = sys.stdout, sys.stderr, sys.argv
    sys.stdout, sys.stderr, sys.argv = ascii_stream(), ascii_stream(), ["engram", *words]
    try:
        main()
        status = 0
    except SystemExit as end:
        status = end.code
    finally:
        out, err = sys.stdout, sys.stderr
        sys.stdout, sys.stderr, sys.argv = before
    out.flush()
    err.flush()
    return status, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()


def test_commands_print_a_question_mark_for_what_ascii_lacks(engram):
    assert engram(*RUN, "größe 東京")[0] == 0
    for words in (["show"], ["report"], ["status"], ["export", "--common", "--out", "Łódź"]):
        command, *more = words
        status, out, err = called(command, "größe 東京", *more)
        assert status == 0, err
        assert "?" in out
        assert out.isascii()
    assert Path("Łódź").is_dir()
    status, out, _ = called("runs", ".", "--json")
    assert json.loads(out.splitlines()[-1])["runs"][0]["name"] == "größe 東京"


def test_a_pipe_is_told_once_a_minute_that_work_goes_on(monkeypatch, capsys):
    times = iter([0.0, 0.5, 30.0, 61.0, 90.0, 122.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=times.__next__))
    with progress.progress_lines("rounds", str) as begin:
        tell = begin("ditto", 100)
        for done in (0, 1, 2, 3, 4):
            tell(done, "")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"ditto: {done} of 100 rounds" for done in (0, 2, 4)
    ]


def test_a_log_without_a_stream_is_plain(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    engram.settings.logs.log_plainly()
    console.err.print("±")


@pytest.mark.processes
@pytest.mark.parametrize("closed", [[2], [0, 1, 2]], ids=["stderr", "all"])
def test_a_run_with_closed_streams_ends_well(tmp_path, closed):
    engram = Path(sys.executable).parent / "engram"
    shut = " ".join(f"{number}>&-" for number in closed)
    line = f'exec "$0" "$@" {shut}'
    done = subprocess.run(["sh", "-c", line, engram, *RUN, "done"], check=False)
    assert done.returncode == 0
    assert json.loads(Path("done/results.json").read_text())["rounds"] == 2
    written = {path.name for path in Path("done").iterdir() if path.is_file()}
    assert written >= {"config.json", "metrics.jsonl", "accuracy.png"}
    assert not any(b"mean \xc2\xb1" in Path("done", name).read_bytes() for name in written)
    assert os.path.isdir("done/checkpoints")


@pytest.mark.processes
def test_names_are_read_as_utf8_where_python_was_told_not_to():
    record = RunWriter.create(Path("größe"), small(), engine="vectorized", training="x")
    record.append({"round": 1, "names": {"0": "東京"}, "cohort": [0], "absent": {}})
    bare = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0"}
    command = [Path(sys.executable).parent / "engram", "status", "größe", "--json"]
    bare["PYTHONCOERCECLOCALE"] = "0"
    done = subprocess.run(command, check=False, env=bare, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["clients"][0]["name"] == "東京"
