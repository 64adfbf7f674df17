"""A slice of the cases that are made at random; all of them by `python -m tests.fuzz`."""

import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from tests.fuzz.commands import all_commands
from tests.fuzz.harness import Finding, fuzz


@pytest.mark.full
def test_no_case_ends_in_a_traceback_hangs_or_leaves_things() -> None:
    words = [sys.executable, "-m", "tests.fuzz", "--cases", "30", "--seed", "0"]
    root = Path(__file__).parents[2]
    ended = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_a_case_did_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzz import harness

    def hangs(rng: Random, here: Path) -> None:
        time.sleep(60)

    def breaks(rng: Random, here: Path) -> None:
        raise KeyError("x" if rng.random() < 2 else "y")

    def dies(rng: Random, here: Path) -> None:
        os._exit(3)

    def eats(rng: Random, here: Path) -> None:
        bytearray(2**40)

    def refuses(rng: Random, here: Path) -> None:
        Experiment.from_config({"alpha": "x"})

    def mumbles(rng: Random, here: Path) -> None:
        print("one line\nand another", file=sys.stderr)
        raise SystemExit(2)

    def escapes(rng: Random, here: Path) -> None:
        print("\x1b[2J")

    def writes(rng: Random, here: Path) -> list[str]:
        return ["show", "x"]

    def command() -> None:
        Path("half").write_text("x")
        raise Refused("x")

    def main() -> None:
        try:
            command()
        except Refused as error:
            print(f"engram: {error}", file=sys.stderr)
            raise SystemExit(2) from None

    monkeypatch.setattr(harness, "main", main)
    cases = (hangs, breaks, dies, eats, refuses, mumbles, escapes, writes)
    found: list[Finding] = []
    counts = fuzz(
        {case.__name__: case for case in cases},
        {case.__name__: range(1) for case in cases},
        seed=0,
        seconds=0.5,
        tell=lambda entry, finding: found.append(finding) if finding else None,
    )
    told = {finding.entry: finding.told for finding in found}
    expected = {key: ["traceback"] for key in ("breaks", "dies", "eats")} | {
        "hangs": ["hang"],
        "refuses": ["refused"],
        "mumbles": ["unclear"],
        "escapes": ["unclear"],
        "writes": ["half-written"],
    }
    assert {entry: list(+verdicts) for entry, verdicts in counts.items()} == expected, told
    assert "time.sleep" in told["hangs"] or "in hangs" in told["hangs"]
    assert "KeyError: 'x'" in told["breaks"]
    assert told["dies"].startswith("status 3")
    assert "MemoryError" in told["eats"]
    assert "half" in told["writes"]


def test_all_commands_are_found() -> None:
    names = {" ".join(words) for words, _ in all_commands()}
    assert {"", "run", "memory list", "reproduce sinewave", "init-federation", "predict"} <= names
