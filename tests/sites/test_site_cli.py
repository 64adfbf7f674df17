"""The commands by which a site looks after its node: `engram log`, and others."""

import json
import re

import pytest

from engram.client.disk_memory import DiskStore
from engram.client.training_description import note_training
from engram.data.schema.columns import Kind
from engram.settings.experiment import Experiment
from engram.sites.approvals import Awaited, Request, require
from engram.sites.audit import Audit
from tests.client.test_memory import params
from tests.sites.test_audit import NOON

LINE = {"kind": "train", "run": 17, "training": "0123456789abcdef", "method": "fedavg", "round": 3}
LINE |= {"clients": "[1]", "rows": 120, "metrics": {"train-loss": 0.25}}
LINE |= {"received": 2000, "sent": 1000, "seconds": 0.5}


@pytest.fixture
def audit(folder):
    found = Audit(folder / "state" / "log")
    found.append(LINE, trained=True, at=NOON)
    refused = {key: LINE[key] for key in ("kind", "run", "training", "method")}
    found.append(refused | {"why": "no \x1b[2J"}, trained=False, at=NOON)
    found.append({"kind": "ended", "run": 17, "why": "too long"}, trained=True, at=NOON)
    return found


def test_the_log_has_a_line_a_round_and_says_that_it_is_whole(engram, folder, audit):
    status, out, _ = engram("log", folder)
    first, second, third, last = out.splitlines()
    assert status == 0
    assert first == (
        "2026-03-01T12:00:00Z run 17, fedavg, round 3: trained clients [1] on 120 rows in 0.50 s, "
        "train-loss 0.25; 2000 bytes received, 1000 sent"
    )
    assert second.endswith("run 17, fedavg: refused: no \\x1b[2J")
    assert third.endswith("run 17: its work was ended: too long")
    assert last == f"3 lines, none changed; the last one's hash is {audit.read().last}"
    status, out, _ = engram("log", folder, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["line"] for line in lines] == [1, 2, 3]
    assert lines[0].items() >= LINE.items()


def test_a_log_that_was_changed_is_shown_and_ends_with_a_fault(engram, folder, audit):
    path = folder / "state" / "log" / "log.jsonl"
    path.write_text(path.read_text().replace('"rows": 120', '"rows": 12'))
    status, out, err = engram("log", folder)
    assert status == 1
    assert "on 12 rows" in out
    assert err == f"engram: line 1 of the log is not what was written: see {path}\n"


def test_a_folder_without_a_state_is_refused(engram, folder):
    status, _, err = engram("log", folder)
    assert status == 2
    assert err == f"engram: {folder}/state is not there: name a client's folder, or its --state\n"


def test_status_of_a_client_shows_its_node_policy_and_rounds(engram, folder, audit, monkeypatch):
    monkeypatch.setattr("engram.sites.status.now", lambda: NOON)
    (folder / "policy.toml").write_text('methods = ["fed*"]\nrounds-a-day = 9\n')
    training = folder / "state" / "memory" / LINE["training"]
    DiskStore(training).save(1, params(1), server_round=3, durable=0)
    note_training(training, Experiment(method="fedavg"), Kind("float32[1,8,8]", 10), "", 17)
    asked = Request("e" * 16, "f" * 32, 18, "fedprox", 5, {"train": 5}, 10)
    with pytest.raises(Awaited):
        require(folder / "state" / "approvals", asked, NOON)
    status, out, _ = engram("status", folder)
    assert status == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line}
    assert lines["client"] == "1 of 2, of fed at 127.0.0.1:9092"
    assert lines["node"] == f"does not run: engram node {folder}"
    assert lines["policy"] == f"{folder}/policy.toml: methods=['fed*'], rounds-a-day=9"
    assert lines["today"] == "2 of at most 9 rounds of training"
    assert lines["waiting"] == "f" * 32
    assert lines["log"] == "whole; the last lines:"
    assert "run 17, fedavg, round 3: trained clients [1] on 120 rows" in out
    found = json.loads(engram("status", folder, "--json")[1])
    (memory,) = found["memories"]
    told = [memory[key] for key in ("run", "method", "client", "server_round")]
    assert told == [17, "fedavg", 1, 3]
    assert (found["policy"]["steps"], found["runs"], len(found["log"])) == (100_000, False, 3)
    _, out, _ = engram("memory", "list", folder)
    assert re.search(
        r"0123456789abcdef .* 1 .* fedavg .* 3 .* \d{4}-\d\d-\d\d \d\d:\d\d .* 17 ", out
    )


def test_a_memory_of_an_earlier_version_is_listed_without_its_run(engram, folder):
    training = folder / "state" / "memory" / LINE["training"]
    DiskStore(training).save(1, params(1), server_round=3, durable=0)
    assert json.loads(engram("memory", "list", folder, "--json")[1])[0]["method"] == ""
    assert "?" in engram("memory", "list", folder)[1]
