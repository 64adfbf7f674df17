"""Folders that somebody has damaged, or forged: a row says so, and no command fails by them."""

import json
import os
import re
from contextlib import chdir
from itertools import product
from pathlib import Path

import pytest

from engram.data.file_models import Clients, Name, Stored, of_kind
from engram.runs.folder_records import ScoresRow
from engram.runs.run_list import entries
from engram.runs.writer import RunWriter
from engram.settings.errors import Refused
from engram.studio.pages.page import page
from engram.studio.run_index import RunIndex
from engram.wire.checksums import summed
from tests.samples import entry
from tests.support import small

DEEP = '{"runs": ' + "[" * 100_000


def run_in(folder, **settings):
    record = RunWriter.create(folder, small(**settings), engine="vectorized", training="x")
    record.append({"round": 1})
    return record


@pytest.fixture
def runs(tmp_path):
    """A folder with a run in order."""
    run_in(tmp_path / "runs" / "sound")
    return tmp_path / "runs"


def states(folder):
    """Returns the states that the list and the board give, which are the same."""
    listed = {entry.name: entry.state for entry in entries(folder)}
    assert {one.name: one.state for one in RunIndex(folder).everything()} == listed
    assert listed.pop("sound") == "stopped, 1 rounds are done"
    return listed


def test_a_damaged_comparison_is_a_row_that_says_so(runs, engram):
    run_in(runs.parent / "elsewhere")
    (runs / "plan").mkdir()
    for text in [
        '{"engine": "", "runs": 3}',
        '{"engine": "", "runs": {"a\\u0000": {"method": "ditto"}}}',
        '{"engine": "", "runs": {"../../elsewhere": {"method": "ditto"}}}',
        '{"engine": "", "runs": {"..": {"method": "ditto"}}}',
        '{"engine": "", "runs": {"a": 3}}',
        '{"engine": "", "runs": {"a": {"method": ["ditto"]}}}',
        '{"engine": "", "runs": {"a": {"method": "\\ud800"}}}',  # half of a pair of surrogates
        '{"runs": {}}',
        "[]",
        DEEP,
    ]:
        with entry(text):
            (runs / "plan" / "comparison.json").write_text(text)
            assert "is damaged" in states(runs)["plan"]
            status, _, err = engram("show", runs / "plan")
            assert (status, err.count("\n")) == (2, 1)


def test_other_damaged_folders_are_rows(runs, engram):
    for number, (name, contents) in enumerate(
        [
            ("tuning.json", {"fixed": 3}),
            ("tuning.json", {"fixed": {"../x": {}}, "asked": [], "trials": 1, "seeds": [0]}),
            ("tuning.json", {"fixed": {"ditto": {}}, "asked": [], "trials": 1, "seeds": []}),
            ("plan.json", {"experiment": ["sinewave"]}),
            ("config.json", summed({"format": 2, "settings": 3})),
            ("config.json", summed({"format": 2, "settings": {"method": []}, "metrics": {}})),
        ]
    ):
        with entry(name, contents):
            folder = runs / f"bad-{number}"
            folder.mkdir()
            (folder / name).write_text(json.dumps(contents))
            assert "is damaged" in states(runs)[folder.name]
            assert engram("show", folder)[0] == 2


FORGED = {
    "settings": {"settings": {"method": "fedavg"}},
    "seed": {"settings": {"seed": "0"}},
    "metrics": {"metrics": {"accuracy": {"better": "maybe", "meaning": "", "percent": True}}},
    "sources": {"sources": []},
    "versions": {"versions": None},
}
FORGED_RESULTS = [
    {"clients": 3},
    {"clients": {"ids": [0, 1], "accuracy": [0.5]}},
    {"clients": {"ids": [10**6]}},
    {"clients": {"ids": [99], "accuracy": [0.5]}},
    {"selected": {"round": "first", "clients": {"ids": [0]}}},
    {"unseen": [-1]},
    {"rounds": 10**400},
]


def test_configurations_and_results_with_a_right_checksum_may_be_forged(runs):
    for name, change in FORGED.items():
        own = run_in(runs / name).config
        whole = change.get("settings", {}).get("method")
        settings = change["settings"] if whole else own["settings"] | change.get("settings", {})
        text = json.dumps(summed(own | change | {"settings": settings}))
        (runs / name / "config.json").write_text(text)
    for number, found in enumerate(FORGED_RESULTS):
        record = run_in(runs / f"results-{number}")
        (record.folder / "results.json").write_text(
            json.dumps(summed({"method": "local-moml", **found}))
        )
    told = states(runs)
    assert len(told) == len(FORGED) + len(FORGED_RESULTS)
    for name, state in told.items():
        file = "results.json" if name.startswith("results-") else "config.json"
        assert f"{file} is damaged: " in state, name


def test_forged_rows_are_left_out_with_a_warning(runs, warnings_of_engram, engram):
    for number, row in enumerate(
        [
            *({"round": "1"}, {"round": 10**400}, {"round": 2, "cohort": 3}),
            *({"round": 2, "names": {"first": "a"}}, {"round": 2, "absent": {"0": 1}}),
            {"round": 2, "bytes-sent": "many"},
            {"round": 2, "deep": json.loads("[" * 100 + "]" * 100)},
        ]
    ):
        with entry(row):
            record = run_in(runs / str(number))
            record.append(row)
            record.append({"round": 3})
            assert [one["round"] for one in record.rows()] == [1, 3]
            assert "lines [2] are damaged" in warnings_of_engram.text
            warnings_of_engram.clear()
    for folder in sorted(runs.glob("[0-9]")):  # commands log in their own way
        assert engram("status", folder)[0] == 0


def test_files_that_do_not_fit_together_are_one_line(runs, engram):
    record = run_in(runs / "lacking", method="fedavg")
    record.append({"round": 2, "accuracy": 0.5, "scored": 1})
    for command in ("show", "report"):
        status, _, err = engram(command, record.folder)
        assert (status, err.count("\n")) == (2, 1)
        assert "lacking is damaged: its files do not fit together (KeyError: " in err


def test_neither_pipes_nor_devices_hang(runs):
    (runs / "sound" / "lock").unlink()
    os.mkfifo(runs / "sound" / "lock")
    for name in ("config.json", "comparison.json", "tuning.json", "plan.json"):
        for kind in ("pipe", "zero"):
            folder = runs / f"{kind}-{name}"
            folder.mkdir()
            os.mkfifo(folder / name) if kind == "pipe" else (folder / name).symlink_to("/dev/zero")
    found = states(runs)
    assert len(found) == 8
    assert all(state and "finished" not in state for state in found.values())
    with pytest.raises(OSError, match="Not a regular file"), RunWriter(runs / "sound").hold():
        pass


def test_links_are_not_followed(runs, tmp_path):
    other = run_in(tmp_path / "elsewhere")
    (runs / "linked").symlink_to(other.folder)
    (runs / "inside").mkdir()
    (runs / "inside" / "config.json").symlink_to(other.folder / "config.json")
    found = states(runs)
    assert found["linked"] == "a link, which is not followed"
    assert "A link, which is not followed" in found["inside"]
    with pytest.raises(Refused, match="there is no linked in"):
        RunIndex(runs).path("linked")
    plan = {"engine": "", "runs": {"a": {"method": "ditto"}}}
    (runs / "plan").mkdir()
    (runs / "plan" / "comparison.json").write_text(json.dumps(plan))
    (runs / "plan" / "a").symlink_to(other.folder)
    assert states(runs)["plan"] == "0 of 1 runs are done"
    with pytest.raises(Refused, match="nothing to report"):
        page(runs / "plan")


def test_huge_files_are_not_read(runs):
    for name, folder in (("config.json", "config"), ("metrics.jsonl", "metrics")):
        record = run_in(runs / folder)
        with (record.folder / name).open("r+b") as file:
            file.truncate(3 * 2**30)  # without blocks on the disk
    assert all("Larger than" in state for state in states(runs).values())


def test_a_damaged_trial_is_one_line(runs, engram):
    plan = {"fixed": {"ditto": {}}, "asked": ["eta=0.1,0.2"], "trials": 2, "seeds": [0]}
    (runs / "search" / "ditto").mkdir(parents=True)
    (runs / "search" / "tuning.json").write_text(json.dumps(plan))
    row = {"number": "first", "settings": {}, "scores": [1.0]}
    (runs / "search" / "ditto" / "trials.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    status, _, err = engram("show", runs / "search")
    assert status == 2
    assert err.endswith("trials.jsonl is damaged: line 1 is no trial\n")


OF_A_RUN = [
    *("show both/old", "show both", "report both/old", "report both", "status both/old"),
    *("track both/old --to tensorboard", "export both/old --client 0", "export both/old --common"),
    *("adapt both/old --data rows.csv", "run --resume both/old", "compare --resume both"),
]


def test_a_run_of_another_version_is_refused_in_one_line(engram, tmp_path):
    old = run_in(tmp_path / "both" / "old").folder
    config = json.loads((old / "config.json").read_text())
    del config["format"], config["crc32"]
    plan = {"engine": "vectorized", "runs": {"old": config["settings"]}}
    (tmp_path / "both" / "comparison.json").write_text(json.dumps(plan))
    (tmp_path / "rows.csv").write_text("x,y\n1,0\n")
    for number, words in product([{}, {"format": 1}, {"format": 3}], OF_A_RUN):
        (old / "config.json").write_text(json.dumps(summed(config | number)))
        with entry(number, words), chdir(tmp_path):
            status, _, err = engram(*words.split())
            assert (status, err.count("\n")) == (2, 1)
            assert "both/old was written by another version of Engram, whose runs this " in err
    (row,) = (row for row in entries(tmp_path / "both") if row.name == "old")
    assert "was written by another version of Engram" in row.state


# --- Contents that do not fit their model ---------------------------------------------------


class Row(Stored):
    """A folder, and how many clients are in it."""

    folder: Name
    clients: Clients = 1


DAMAGED = [
    (Row, {}, "it lacks folder"),
    (Row, [], " must be an object, got []"),
    (Row, {"folder": ".."}, "folder must be the name of a folder, got '..'"),
    (Row, {"folder": 3}, "folder must be a valid string, got 3"),
    (Row, {"folder": "a", "clients": "1"}, "clients must be a valid integer, got '1'"),
    (Row, {"folder": "a", "clients": 0}, "clients must be greater than or equal to 1, got 0"),
    (ScoresRow, {"round": 1, "ids": 2}, "ids must be a list, got 2"),
    (
        ScoresRow,
        {"round": 1, "ids": [0], "loss": [0.5, 0.25]},
        "columns of clients must be equally long, got [1, 2]",
    ),
]


def test_what_is_wrong_with_a_file_is_told_in_plain_words():
    for kind, contents, words in DAMAGED:
        line = f"^{re.escape(f'f.json is damaged: {words}')}$"
        with entry(kind, contents, words), pytest.raises(Refused, match=line):
            of_kind(kind, contents, Path("f.json"))
