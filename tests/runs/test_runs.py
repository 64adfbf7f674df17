"""``engram runs``: a list of what a folder holds."""

import json
import os
from pathlib import Path

import pytest

from engram.runs.run_list import entries
from engram.runs.writer import RunWriter
from tests.support import small


def began(folder, name, seconds):
    """Sets when the file that tells the kind of a folder was written."""
    os.utime(folder / name, (seconds, seconds))


@pytest.fixture
def folder(tmp_path):
    """A run of each state, and one of each other kind."""
    for number, name in enumerate(("fresh", "done", "cut", "damaged")):
        settings = {"method": "fedavg"} if name == "done" else {}
        record = RunWriter.create(
            tmp_path / name, small(**settings), engine="vectorized", training=name
        )
        if name == "done":
            record.finish({"method": "fedavg", "accuracy": 0.8125})
        if name == "cut":
            record.append({"round": 1})
            record.append({"round": 2})
        if name == "damaged":
            text = (record.folder / "config.json").read_text()
            (record.folder / "config.json").write_text(text.replace("digits", "digitz"))
        began(record.folder, "config.json", number)
    files = {
        "comparison.json": {"engine": "", "runs": {"a": {"method": "ditto", "dataset": "npz:x"}}},
        "tuning.json": {"fixed": {"ditto": {}, "apfl": {"dataset": "npz:x"}}}
        | {"asked": [], "trials": 1, "seeds": [0]},
        "plan.json": {"experiment": "sinewave"},
    }
    for number, (name, contents) in enumerate(files.items(), 10):
        (tmp_path / name.split(".")[0]).mkdir()
        (tmp_path / name.split(".")[0] / name).write_text(json.dumps(contents))
        began(tmp_path / name.split(".")[0], name, number)
    for name in ("ditto", "apfl"):
        (tmp_path / "tuning" / name).mkdir()
        (tmp_path / "tuning" / name / "best.toml").touch()
    (tmp_path / "notes").mkdir()
    (tmp_path / "data.png").touch()
    return tmp_path


def test_runs_are_listed_with_their_states_the_newest_first(folder):
    found = {entry.name: entry[1:6] for entry in entries(folder)}
    assert list(found) == ["plan", "tuning", "comparison", "damaged", "cut", "done", "fresh"]
    assert found["fresh"] == ("run", "local-moml", "digits", "stopped, 0 rounds are done", "")
    assert found["cut"][3] == "stopped, 2 rounds are done"
    assert found["done"] == ("run", "fedavg", "digits", "finished", "accuracy 81.2 %")
    assert "checksum is missing or wrong" in found["damaged"][3]
    assert found["comparison"][1:] == ("ditto", "npz:x", "0 of 1 runs are done", "")
    state = "not finished, 2 of 2 methods have settings"
    assert found["tuning"][1:] == ("ditto, apfl", "digits, npz:x", state, "")
    assert found["plan"] == ("study", "sinewave", "", "not finished", "")


def test_a_run_that_goes_on_says_so(folder):
    with RunWriter.open(folder / "cut").hold():
        (state,) = [entry.state for entry in entries(folder) if entry.name == "cut"]
    assert state == "running, 2 rounds are done"


def test_the_command_lists_them_and_says_what_is_next(engram, folder, monkeypatch):
    monkeypatch.chdir(folder)
    status, out, _ = engram("runs", ".", "--json")
    assert status == 0
    names = [row["name"] for row in json.loads(out.splitlines()[-1])["runs"]]
    assert names[:2] == ["plan", "tuning"]
    assert engram("runs", ".")[1].splitlines()[-1] == "next: engram show tuning"
    Path("plan/results.json").touch()
    assert engram("runs", ".")[1].splitlines()[-1] == "next: engram show plan"
    Path("empty").mkdir()
    assert engram("runs", "empty")[1] == "There is no run in empty.\nnext: engram run\n"
    status, _, said = engram("runs", "none")
    assert status == 2
    assert said == "engram: FOLDER must be a folder of runs, got none: there is none\n"
