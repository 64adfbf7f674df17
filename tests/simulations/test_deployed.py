"""The process that watches a run on a federation; its coordinator is a script here."""

import contextlib
import os
import signal
import sys
import time

import pytest

from engram.cli import deployed_cli, work
from engram.cli.deployed_cli import _without_a_part
from engram.cli.progress import progress_lines
from engram.runs.run import Run
from engram.runs.writer import RunWriter, Taken
from engram.settings.errors import Refused, RunStopped
from engram.settings.experiment import Experiment
from engram.simulations import deployed
from engram.simulations.deployed import run_alone, run_deployed, run_number
from tests.processes.support import wait_for


@pytest.fixture
def coordinator(monkeypatch, tmp_path):
    """Puts a script in the place of the coordinator; returns what sets it."""
    (tmp_path / "server").mkdir()
    monkeypatch.setattr(deployed, "status", lambda folder, patience: None)
    monkeypatch.setattr(deployed, "_RETRY", 0.01)
    monkeypatch.setattr(deployed, "_LONGEST", 0.01)
    monkeypatch.setattr(deployed, "_LOOK", 0.01)

    def runs(script):
        monkeypatch.setattr(deployed, "_COORDINATOR", (sys.executable, "-c", script))

    return runs


def run(tmp_path, **options):
    experiment = Experiment.from_config({"num-rounds": 5})
    run_deployed(experiment, tmp_path / "run", tmp_path / "server", **options)


def test_a_server_that_does_not_answer_is_waited_for_and_told_of(tmp_path, monkeypatch):
    asked, words = [], []

    def status(folder, patience):
        asked.append((folder, patience))
        raise Refused("no server answers")

    monkeypatch.setattr(deployed, "status", status)
    with pytest.raises(Refused, match="no server answers"):
        run(tmp_path, on_word=words.append)
    assert asked == [(tmp_path / "server", patience) for patience in (10.0, 290.0)]
    assert words == ["waiting for the server: no server answers"]
    with pytest.raises(Refused):
        run(tmp_path, patience=0, on_word=words.append)
    assert (asked[2:], len(words)) == ([(tmp_path / "server", 0)], 1)


COORDINATOR = """
import json, sys
assert json.load(sys.stdin)["num-rounds"] == 5
say = lambda text: print(text, flush=True)
say("2026-11-26T01:48:40.123Z INFO [engram] roster: 2 clients")
say("2026-11-26T01:48:40.123Z WARNING [flwr] a notice of Flower's")
say("2026-11-26T01:48:40.123Z WARNING [engram] node 5 is busy: a")
say('{"level": "WARNING", "logger": "engram", "message": "node 6 is busy"}')
say("2026-11-26T01:48:40.123Z ERROR [engram] engram: " + VERDICT)
"""
VERDICT = "VERDICT = 'round 2 diverged'\n"


def test_warnings_of_the_coordinator_are_passed_on_and_its_verdict_ends_the_run(
    coordinator, tmp_path
):
    coordinator(VERDICT + COORDINATOR)
    words = []
    with pytest.raises(RunStopped, match=r"^round 2 diverged$"):
        run(tmp_path, on_word=words.append)
    starting = f"run {run_number(tmp_path / 'run')}: its coordinator is starting"
    assert words == [starting, "node 5 is busy: a", "node 6 is busy"]


def test_a_coordinator_is_told_what_to_do(coordinator, tmp_path):
    coordinator("import sys; VERDICT = ' '.join(sys.argv[1:])\n" + COORDINATOR)
    with pytest.raises(RunStopped) as stopped:
        run(tmp_path)
    assert str(stopped.value) == f"{tmp_path}/server {tmp_path}/run {deployed.RUN}"


SLEEPS = """
import os, sys, time
from pathlib import Path
place = Path(sys.argv[2]).with_name("pid")
place.with_name("new").write_text(str(os.getpid()))
place.with_name("new").rename(place)
time.sleep(60)
"""


def test_a_run_that_is_interrupted_ends_its_coordinator(coordinator, tmp_path, monkeypatch):
    coordinator(SLEEPS)
    monkeypatch.setattr(deployed, "_SAY", 0.0)

    def note(line):
        if line == "waiting for the run's coordinator":
            wait_for((tmp_path / "pid").is_file, "the coordinator")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, on_word=note)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_coordinator_that_has_begun_is_not_said_to_be_waited_for(
    coordinator, tmp_path, monkeypatch
):
    coordinator(VERDICT + COORDINATOR.replace("say(", "import time; time.sleep(0.3); say(", 1))
    monkeypatch.setattr(deployed, "_SAY", 0.0)
    words = []
    with pytest.raises(RunStopped, match=r"^round 2 diverged$"):
        run(tmp_path, on_word=words.append)
    assert words[-2:] == ["node 5 is busy: a", "node 6 is busy"]


def test_a_silence_is_said_once_until_there_is_news(monkeypatch):
    words, now = [], [0.0]
    monkeypatch.setattr(deployed.time, "monotonic", lambda: now[0])
    quiet = deployed._Quiet(words.append)
    for second in range(100):
        now[0] = float(second)
        quiet.look("a round", 30.0)
        if second == 50:
            quiet.news()
    assert words == ["waiting for a round"] * 2


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_another_process_runs_says_so(coordinator, tmp_path, monkeypatch, begun):
    folder, server = tmp_path / "run", tmp_path / "server"
    monkeypatch.setattr(deployed, "_SAY", 0.0)
    experiment = Experiment.from_config({"num-rounds": 5})

    def note(line):
        assert line == f"waiting for another process that runs {folder}"
        raise KeyboardInterrupt

    with contextlib.ExitStack() as stack:
        if begun:
            record = RunWriter.create(folder, experiment, engine="flower", training="x")
            stack.enter_context(record.hold())
        else:
            stack.enter_context(run_alone(server, folder))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, on_word=note)
    taken = pytest.raises(Taken, match="is being run by another process")
    with run_alone(server, tmp_path / "another"), run_alone(server, folder), taken:
        run_alone(server, folder).__enter__()
    assert [*server.iterdir()] == []


def test_a_run_whose_folder_another_coordinator_has_goes_on_with_that_one(
    coordinator, tmp_path, monkeypatch
):
    folder, told, holding = tmp_path / "run", [], contextlib.ExitStack()
    experiment = Experiment.from_config({"num-rounds": 5})
    coordinator(MEETS)
    other = RunWriter.create(folder, experiment, engine="flower", training="x")

    def begin(line):
        assert line.startswith("the coordinator died: run is being run by another process; going")
        holding.enter_context(other.hold())
        other.append({"round": 1})

    def end(row):
        told.append(row["round"])
        monkeypatch.setattr(deployed, "_finished", lambda folder, experiment, before: True)
        holding.close()

    run(tmp_path, on_trouble=begin, on_round=end)
    assert told == [1]


MEETS = """
print("2026-11-26T01:48:40.123Z WARNING [engram] run is being run by another process", flush=True)
raise SystemExit(1)
"""


PROGRESS = """
import sys
from pathlib import Path
from engram.wire.checksums import Journal
folder = Path(sys.argv[2])
tries = folder.with_name("tries")
tries.write_text(tries.read_text() + ".")
folder.mkdir(exist_ok=True)
if len(tries.read_text()) <= 3:
    Journal(folder / "metrics.jsonl", dict).append({"round": len(tries.read_text())})
"""


def test_a_run_is_given_up_after_attempts_without_a_new_round(coordinator, tmp_path, monkeypatch):
    # The first three record a round each, and no other gets further.
    monkeypatch.setattr(deployed, "_FRUITLESS", 2)
    coordinator(PROGRESS)
    (tmp_path / "tries").write_text("")
    with pytest.raises(RunStopped, match=r"died, 2 times without a new round$"):
        run(tmp_path)
    assert (tmp_path / "tries").read_text() == "." * 5


def test_clients_without_a_part_are_named_by_reason():
    why = {"1": "off line", "2": "off line", "3": "it lacks the inputs dose"}
    rows = [
        {"round": 1, "cohort": [0, 4], "absent": why, "names": {"3": "north"}},
        {"round": 2, "cohort": [0, 1, 4], "absent": {"2": "off line", "4": "no reply"}},
    ]
    assert _without_a_part(rows) == [
        "without a part in the run: clients [2]: off line (2 of 2 rounds)",
        "without a part in the run: clients [north]: it lacks the inputs dose (1 of 2 rounds)",
    ]
    assert _without_a_part([]) == []


def test_rounds_that_were_told_before_are_not_told_again(tmp_path):
    # A run that goes on after a crash: rows 0 to 3 are there, and 4 and 5 are new.
    def add(*rounds):
        for number in rounds:
            RunWriter(tmp_path).append({"round": number})

    def goes_on():
        add(4, 5)
        return False

    add(0, 1, 2, 3)
    told = []
    deployed._watch(tmp_path, lambda row: told.append(row["round"]), goes_on)
    assert told == [3, 4, 5]


def test_each_round_is_counted_once_by_a_resumed_run_that_was_disturbed(tmp_path, monkeypatch):
    # Rounds 0 to 2 are there; each attempt begins by telling the last one again.
    for number in range(3):
        RunWriter(tmp_path).append({"round": number})
    made, told = [], []

    def attempts(experiment, folder, server, *, on_round, **others):
        for number in (2, 3, 4, 4, 5):
            on_round({"round": number, "ms": 1000.0, "bytes-sent": 10, "absent": {"1": "away"}})

    def at_once(runs, execute, again, **others):
        for folder, experiment in runs.items():
            execute(experiment, folder, lambda row: told.append(row["round"]), told.append)

    monkeypatch.setattr(work, "run_deployed", attempts)
    monkeypatch.setattr(deployed_cli, "run_all", at_once)
    monkeypatch.setattr(deployed_cli, "_without_a_part", lambda rows: [])
    monkeypatch.setattr(
        deployed_cli, "serve_counters", lambda counters, port: made.append(counters)
    )
    monkeypatch.setattr(Run, "open", Run)
    deployed_cli._follow(Experiment(), tmp_path, tmp_path, "")
    (counters,) = made
    assert told == [2, 3, 4, 4, 5]
    assert {key: counters._counts[key] for key in ("rounds", "round_seconds", "sent_bytes")} == {
        "rounds": 3,
        "round_seconds": 3,
        "sent_bytes": 30,
    }


def test_a_run_that_is_only_watched_ends_at_once(capsys):
    # Not between rounds, of which none may come: a container is killed after 30 seconds.
    def watched(sign):
        with progress_lines("rounds", lambda: "go on", at_once=True):
            os.kill(os.getpid(), sign)
            time.sleep(5)
        raise AssertionError("it was not interrupted")

    for sign in (signal.SIGTERM, signal.SIGINT):
        with pytest.raises(SystemExit) as ended:
            watched(sign)
        assert ended.value.code == 130
        assert "interrupted; go on" in capsys.readouterr().err
