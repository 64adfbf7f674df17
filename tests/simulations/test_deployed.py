"""The process that watches a run on a federation; Flower's command is a script here."""

import contextlib
import os
import re
import signal
import sys
import time

import pytest

from engram.cli import deployed_cli
from engram.cli.deployed_cli import _without_a_part
from engram.cli.progress import progress_lines
from engram.link.server.control import Declined
from engram.link.server.launch import Launch
from engram.runs.run import Run
from engram.runs.writer import RunWriter
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment
from engram.simulations import deployed
from engram.simulations.deployed import run_deployed

BOX = """Using SuperLink: fed (127.0.0.1:8000)
╭─ Error ──────────────────────────────────────────────────────────────────────╮
│ Connection to the SuperLink is unavailable. Please check your network        │
│ connection and 'address' in the SuperLink connection configuration.          │
╰──────────────────────────────────────────────────────────────────────────────╯
"""


@pytest.fixture
def flwr(monkeypatch, tmp_path):
    """Puts a script in the place of Flower's command; returns what sets it."""
    (tmp_path / "server" / "flwr").mkdir(parents=True)

    def runs(script):
        def command(folder, *words, control=None):
            del words, control
            return Launch([sys.executable, "-c", script], {}, folder)

        monkeypatch.setattr(deployed, "flwr_command", command)

    return runs


def run(tmp_path, **options):
    experiment = Experiment.from_config({"num-rounds": 5})
    run_deployed(experiment, tmp_path / "run", tmp_path / "server", **options)


def test_why_the_superlink_did_not_take_a_run_is_said_in_one_line(flwr, tmp_path):
    flwr(f"import sys; sys.exit({BOX!r})")
    with pytest.raises(RunStopped) as stopped:
        run(tmp_path, patience=0)
    assert str(stopped.value) == (
        "the SuperLink did not take the run: Connection to the SuperLink is unavailable. Please "
        "check your network connection and 'address' in the SuperLink connection configuration. "
        "(for 0 s)"
    )


COORDINATOR = """
say = lambda text: print(text, flush=True)
say("Successfully started run 7")
say("2026-11-26T01:48:40.123Z INFO [engram] roster: 2 clients")
say("2026-11-26T01:48:40.123Z WARNING [flwr] a notice of Flower's")
say("2026-11-26T01:48:40.123Z WARNING [engram] node 5 is busy: a")
say('{"level": "WARNING", "logger": "engram", "message": "node 6 is busy"}')
say("2026-11-26T01:48:40.123Z ERROR [engram] engram: round 2 diverged")
"""


def test_warnings_of_the_coordinator_are_passed_on_and_its_verdict_ends_the_run(flwr, tmp_path):
    flwr(COORDINATOR)
    words = []
    with pytest.raises(RunStopped, match=r"^round 2 diverged$"):
        run(tmp_path, on_word=words.append)
    assert words == ["run 7: its coordinator is starting", "node 5 is busy: a", "node 6 is busy"]


def stopping(monkeypatch, answers):
    """Puts answers, or errors, in the place of those to `flwr stop`; returns what was asked."""
    asked = []

    def ask(folder, *words, control=None, what):
        asked.append(words)
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr(deployed, "ask", ask)
    return asked


def declined(*codes):
    error = Declined("the run: it is over")
    error.codes = codes
    return error


DIES = """
import os, sys
sys.stdout.write("Successfully started run 7\\n")
os.write(os.open(WHERE, os.O_WRONLY | os.O_CREAT | os.O_APPEND), b".")
sys.exit(1)
"""


@pytest.mark.parametrize(
    "answers",
    [
        [{"success": True}],
        [declined("18")],
        [RunStopped("no SuperLink answers"), {"success": True}],
        [declined(), RunStopped("no SuperLink answers"), declined("18")],
    ],
    ids=("stopped", "over", "away", "away for long"),
)
def test_no_run_is_submitted_before_the_one_before_is_over(flwr, tmp_path, monkeypatch, answers):
    # Its coordinator could begin later, and meet the next.
    monkeypatch.setattr(deployed, "_RETRY", 0.01)
    monkeypatch.setattr(deployed, "_FRUITLESS", 2)
    runs, troubles = tmp_path / "runs", []
    flwr(DIES.replace("WHERE", repr(str(runs))))
    asked = stopping(monkeypatch, given := [*answers, {"success": True}])

    def trouble(line):
        troubles.append((line, len(runs.read_text()), len(asked)))

    with pytest.raises(RunStopped, match="2 times without a new round"):
        run(tmp_path, on_trouble=trouble)
    assert given == []
    assert asked == [("stop", "7")] * (len(answers) + 1)
    assert [submitted for _, submitted, _ in troubles] == [1] * len(troubles)
    assert [stops for *_, stops in troubles] == [*range(1, max(2, len(answers)))]


@pytest.mark.parametrize(
    ("said", "waits_for"),
    [
        ("", "the SuperLink to take the run"),
        ("Successfully started run 7", r"the run's coordinator: see `engram doctor .*server`"),
    ],
)
def test_what_a_run_waits_for_is_said_and_it_is_stopped_if_interrupted(
    flwr, tmp_path, monkeypatch, said, waits_for
):
    flwr(f"print({said!r}, flush=True)\nimport time\ntime.sleep(600)")
    asked = stopping(monkeypatch, [{"success": True}])
    monkeypatch.setattr(deployed, "_SAY", 0.0)

    def note(line):
        if re.fullmatch(f"waiting for {waits_for}", line):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, on_word=note)
    assert asked == [("stop", "7")] * bool(said)


def test_a_coordinator_that_has_begun_is_not_said_to_be_waited_for(flwr, tmp_path, monkeypatch):
    flwr(COORDINATOR.replace("say(", "import time; time.sleep(0.3); say(", 1))
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


def test_a_run_that_another_process_holds_says_so(flwr, tmp_path, monkeypatch):
    folder, experiment = tmp_path / "run", Experiment.from_config({"num-rounds": 5})
    monkeypatch.setattr(deployed, "_SAY", 0.0)
    monkeypatch.setattr(deployed, "_LOOK", 0.01)

    def note(line):
        assert line == f"waiting for another process that runs {folder}"
        raise KeyboardInterrupt

    held = RunWriter.create(folder, experiment, engine="flower", training="x").hold()
    with held, pytest.raises(KeyboardInterrupt):
        run(tmp_path, on_word=note)


def test_a_run_whose_folder_another_coordinator_has_goes_on_with_that_one(
    flwr, tmp_path, monkeypatch
):
    folder, tries, told = tmp_path / "run", tmp_path / "tries", []
    experiment = Experiment.from_config({"num-rounds": 5})
    flwr(MEETS.replace("WHERE", repr(str(tries))))
    monkeypatch.setattr(deployed, "_RETRY", 0.01)
    monkeypatch.setattr(deployed, "_LOOK", 0.01)
    stopping(monkeypatch, [{"success": True}] * 9)
    other = RunWriter.create(folder, experiment, engine="flower", training="x")
    holding = contextlib.ExitStack()

    def begin(line):
        holding.enter_context(other.hold())
        other.append({"round": 1})

    def end(row):
        told.append(row["round"])
        monkeypatch.setattr(deployed, "_finished", lambda folder, experiment: True)
        holding.close()

    run(tmp_path, on_trouble=begin, on_round=end)
    assert (tries.read_text(), told) == (".", [1])


MEETS = """
import os
print("Successfully started run 7", flush=True)
os.write(os.open(WHERE, os.O_WRONLY | os.O_CREAT | os.O_APPEND), b".")
print("2026-11-26T01:48:40.123Z WARNING [engram] run is being run by another process", flush=True)
raise SystemExit(1)
"""


PROGRESS = """
from pathlib import Path
from engram.wire.checksums import Journal
print("Successfully started run 7", flush=True)
tries, folder = Path("tries"), Path("run")
tries.write_text(tries.read_text() + ".")
folder.mkdir(exist_ok=True)
if len(tries.read_text()) <= 3:
    Journal(folder / "metrics.jsonl", dict).append({"round": len(tries.read_text())})
"""


def test_a_run_is_given_up_after_attempts_without_a_new_round(flwr, tmp_path, monkeypatch):
    # The first three record a round each, and no other gets further.
    monkeypatch.setattr(deployed, "_RETRY", 0.01)
    monkeypatch.setattr(deployed, "_LONGEST", 0.01)
    monkeypatch.setattr(deployed, "_FRUITLESS", 2)
    flwr(f"import os\nos.chdir({str(tmp_path)!r})\n" + PROGRESS)
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
            execute(experiment, folder, lambda row: told.append(row["round"]))

    monkeypatch.setattr(deployed_cli, "run_deployed", attempts)
    monkeypatch.setattr(deployed_cli, "run_all", at_once)
    monkeypatch.setattr(deployed_cli, "_without_a_part", lambda rows: [])
    monkeypatch.setattr(
        deployed_cli, "serve_counters", lambda counters, port: made.append(counters)
    )
    monkeypatch.setattr(Run, "open", Run)
    deployed_cli._follow(Experiment(), tmp_path, tmp_path, None, "")
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
