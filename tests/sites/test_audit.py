"""A node's audit: a chain of lines that survives crashes, and shows what was changed."""

import hashlib
import json
from datetime import UTC, datetime, timedelta

from engram.sites import audit as module
from engram.sites.audit import Audit
from tests.samples import entry

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def add(audit, *numbers, at=NOON, trained=True):
    for number in numbers:
        audit.append({"kind": "train", "round": number}, trained=trained, at=at)


def rounds(audit):
    return [line.get("round") for line in audit.read().lines]


def test_each_line_has_the_hash_of_the_one_before(tmp_path):
    audit = Audit(tmp_path / "log")
    assert audit.read() == ([], "", "0" * 64)
    add(audit, 1, 2, 3)
    raw = (tmp_path / "log" / "log.jsonl").read_bytes().splitlines()
    hashes = ["0" * 64, *(hashlib.sha256(line).hexdigest() for line in raw)]
    assert [json.loads(line)["before"] for line in raw] == hashes[:3]
    found = audit.read()
    assert [line["line"] for line in found.lines] == [1, 2, 3]
    assert (found.fault, found.last) == ("", hashes[3])
    assert found.lines[0]["time"] == "2026-03-01T12:00:00Z"


def test_a_change_shows_at_its_line(tmp_path):
    audit = Audit(tmp_path)
    add(audit, 1, 2, 3, 4)
    path = tmp_path / "log.jsonl"
    first, second, *rest = path.read_bytes().splitlines()
    changed = second.replace(b'"round": 2', b'"round": 7')
    for what, lines, number in [
        ("changed", [first, changed, *rest], 2),
        ("followed by one line", [first, changed, rest[0]], "2 or 3"),
        ("taken out", [first, *rest], 2),
        ("cut off in front", [second, *rest], 1),
        ("exchanged", [second, first, *rest], 1),
        ("zeros", [first, second, b"\0" * 20, *rest], 3),
        ("repeated", [first, second, second, *rest], 3),
    ]:
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        with entry(what):
            says = f"line {number} of the log is not what was written"
            assert audit.read().fault.startswith(says)


def test_a_line_that_a_crash_cut_off_is_healed_and_said(tmp_path, warnings_of_engram):
    for left in (1, 17, -1):
        audit, path = Audit(tmp_path / str(left)), tmp_path / str(left) / "log.jsonl"
        add(audit, 1, 2)
        whole = path.read_bytes()
        add(audit, 3)
        third = path.read_bytes()[len(whole) :]
        path.write_bytes(whole + third[:left])
        assert rounds(audit) == [1, 2]  # as long as nothing is added
        add(audit, 4)
        found = audit.read()
        assert [line["kind"] for line in found.lines] == ["train", "train", "healed", "train"]
        lost = len(third[:left])
        why = f"{lost} bytes of a line that was cut off, as by a crash, are removed"
        assert (found.lines[2]["why"], found.fault) == (why, "")
        assert warnings_of_engram.messages[-1] == f"{path}: {why}"
        assert audit.rounds(NOON) == 3


def test_rounds_of_a_day_are_counted_whoever_counts(tmp_path):
    audit = Audit(tmp_path)
    assert audit.rounds(NOON) == 0
    add(audit, 1, 2)
    add(audit, 3, trained=False)
    assert Audit(tmp_path).rounds(NOON) == 2
    tomorrow = NOON + timedelta(hours=12)
    assert audit.rounds(tomorrow - timedelta(seconds=1)) == 2
    assert audit.rounds(tomorrow) == 0
    add(audit, 4, at=tomorrow)
    assert audit.rounds(tomorrow) == 1
    assert audit.rounds(NOON) == 1  # a clock that was put back


def test_the_same_refusal_is_noted_once(tmp_path):
    audit = Audit(tmp_path)
    for why in ("a", "a", "b", "a"):
        audit.append({"kind": "train", "run": 1, "why": why}, trained=False, at=NOON)
    assert [line["why"] for line in audit.read().lines] == ["a", "b", "a"]


def test_files_are_closed_and_the_chain_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LARGEST", 500)
    monkeypatch.setattr(module, "_CLOSED", 2)
    audit = Audit(tmp_path)
    add(audit, *range(1, 21))
    names = sorted(path.name for path in tmp_path.glob("*.jsonl"))
    assert len(names) == 3
    found = audit.read()
    assert found.fault == ""
    numbers = [line["line"] for line in found.lines]
    assert numbers == list(range(numbers[0], 21))
    assert numbers[0] > 1
    assert audit.rounds(NOON) == 20
    assert all(path.stat().st_size < 1000 for path in tmp_path.glob("*.jsonl"))
    (tmp_path / "log.jsonl").unlink(missing_ok=True)  # as when a crash comes between two files
    add(audit, 21)
    closed = names[1].removeprefix("log-").removesuffix(".jsonl")
    assert audit.read().lines[-1]["line"] == int(closed) + 1
    (tmp_path / names[1]).unlink()
    assert "is not what was written" in audit.read().fault
