"""`engram status`: of a federation, and of a run."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from engram.cli import watch_cli
from engram.link.questions import Member
from engram.link.run import Status
from engram.runs.writer import RunWriter
from engram.wire.clock import now
from tests.sites.budgets import epsilon_of
from tests.support import small


def recorded(rows, **settings):
    """The folder of a run with these rows and settings."""
    record = RunWriter.create(Path("run"), small(**settings), engine="flower", training="a")
    for row in rows:
        record.append(row)
    return record.folder


@pytest.fixture
def there(monkeypatch):
    """Members that a server tells of."""
    found = {}
    monkeypatch.setattr(
        "engram.server.status.status", lambda folder, patience: Status(found, [], {})
    )
    return found


def test_status_names_who_is_there(typed, there):
    typed("init-federation fed --clients 4")
    typed("remove fed/server 3")
    began = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    there |= {"client-0": Member(True, began, "train of run 17")}
    there |= {"client-1": Member(False, began), "client-2": Member(False)}
    status, out, err = typed("status fed/server")
    assert (status, err) == (0, "")
    (line,) = (line for line in out.splitlines() if "online" in line)
    assert all(word in line for word in ("client-0", "2026-01-02 03:04:05", "train of run 17"))
    _, out, _ = typed("status fed/server --json")
    known = ["online", "offline", "registered", "unregistered"]
    assert [(m["name"], m["status"]) for m in json.loads(out)] == [
        (f"client-{number}", status) for number, status in enumerate(known)
    ]


def test_status_says_who_is_invited(typed, there):
    typed("init-federation fed --clients 1")
    for _ in range(2):
        typed("init-federation fed --invite")
    typed("remove fed/server 1")
    there["client-0"] = Member(False)
    found = json.loads(typed("status fed/server --json")[1])
    expected = {"client-0": "registered", "client-2": "invited"}
    assert [(m["name"], m["status"]) for m in found] == [*expected.items()]
    end = found[1]["since"].removeprefix("until ")
    assert now().date() + timedelta(days=13) <= date.fromisoformat(end)
    assert date.fromisoformat(end) <= now().date() + timedelta(days=14)
    (line,) = (line for line in typed("status fed/server")[1].splitlines() if "invited" in line)
    assert f"until {end[:10]}" in line


def test_status_of_a_federation_without_a_server_is_one_line(typed, monkeypatch):
    monkeypatch.setattr(watch_cli, "_STARTING", 0.0)
    typed("init-federation fed --clients 1")
    status, out, err = typed("status fed/server")
    assert (status, out) == (2, "")
    assert err.startswith("engram: no server answers for ")
    assert err.endswith(f": start it with `engram superlink {Path('fed/server').absolute()}`\n")


def test_status_of_a_private_run_has_epsilon_by_client(typed):
    """Two updates lie at most twice clip apart; a line is a release, of a round or of scores."""
    settings = {"privacy": "local", "clip": 0.5, "noise-multiplier": 8.0, "delta": 1e-5}
    cohorts = [{"round": 1, "cohort": [0, 1]}, {"round": 2, "cohort": [1]}]
    folder = recorded([row | {"epsilon": 1.0} for row in cohorts], **settings)
    once, twice, thrice = (epsilon_of([(2 / 8.0) ** 2] * count) for count in (1, 2, 3))
    found = json.loads(typed("status run --json")[1])["epsilon"]
    assert found == {"0": pytest.approx(once, rel=1e-6), "1": pytest.approx(twice, rel=1e-6)}
    (folder / "clients-asked.txt").write_text("0 1\n1\n0 1\n")
    found = json.loads(typed("status run --json")[1])["epsilon"]
    assert found == {"0": pytest.approx(twice, rel=1e-6), "1": pytest.approx(thrice, rel=1e-6)}
    out = typed("status run")[1]
    assert "epsilon" in out
    assert f"{thrice:.4g}" in out


def test_status_of_a_run_private_by_row_has_epsilon_by_client(typed):
    """A step sums all rows where a client has no more than a batch; more rows hide one of them."""
    settings = {"privacy": "example", "clip": 0.5, "noise-multiplier": 8.0, "delta": 1e-5}
    steps = {"method": "fedavg", "batch-size": 16, "local-steps": 3}
    rows = [
        {"round": 1, "cohort": [0, 1], "training-rows": {"0": 16, "1": 160}},
        {"round": 2, "cohort": [0], "training-rows": {"0": 16}},
    ]
    folder = recorded([row | {"epsilon": 1.0} for row in rows], **settings, **steps)
    found = json.loads(typed("status run --json")[1])["epsilon"]
    assert found["0"] == pytest.approx(epsilon_of([1 / 8.0**2] * 6), rel=1e-6)
    assert 0 < found["1"] < epsilon_of([1 / 8.0**2] * 3) / 2
    (folder / "clients-asked.txt").write_text("0 1\n0 2\n")  # the second round was lost
    found = json.loads(typed("status run --json")[1])["epsilon"]
    assert found["2"] == pytest.approx(epsilon_of([1 / 8.0**2] * 3), rel=1e-6)


def test_status_of_a_run_counts_who_took_part(typed):
    rows = [
        {"round": 0, "names": {"2": "park [red]\x1b[2J"}},
        {"round": 1, "cohort": [0, 1], "bytes-sent": 2**20, "seconds-waiting": 1.5},
        {"round": 2, "cohort": [1, 2], "bytes-sent": 2**20}
        | {"absent": {"0": "off line", "2": "no reply"}},
        {"round": 3, "cohort": [1, 2]}
        | {"absent": {"0": "off line", "1": "no reply", "2": "shapes", "3": "no node hosts it"}},
    ]
    recorded(rows)
    _, out, _ = typed("status run --json")
    found = json.loads(out)
    assert [list(share.values()) for share in found["clients"]] == [
        [0, "0", 1, 1, {"off line": 2}],
        [1, "1", 3, 2, {"no reply": 1}],
        [2, "park [red]\x1b[2J", 2, 0, {"no reply": 1, "shapes": 1}],
        [3, "3", 0, 0, {"no node hosts it": 1}],
    ]
    assert (found["costs"]["bytes-sent"], found["costs"]["seconds-waiting"]) == (2**21, 1.5)
    status, out, _ = typed("status run")
    assert status == 0
    assert out.startswith("run: 3 rounds")
    assert "shapes: 1" in out
    assert r"park [red]\x1b[2J" in out
    assert "\x1b" not in out
    assert "2.00 MiB" in out
