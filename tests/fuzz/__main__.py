"""Runs the fuzzer, and prints its results: ``python -m tests.fuzz --cases 5000 --seed 0``.

Exits with 1 if any case ended in a traceback or a hang, in a refusal that is not one short line, or
in one that has changed something on disk.
"""

import argparse
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.fuzz.entries import ENTRIES, shares
from tests.fuzz.folders import WHOLE, prepare
from tests.fuzz.harness import VERDICTS, Finding, fuzz, load_rooms


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0, help="most seconds of a case")
    parser.add_argument("--only", choices=sorted(ENTRIES), help="only this entry point")
    parser.add_argument("--number", type=int, help="only this case of it")
    parser.add_argument("--log", type=Path, help="a file for findings, as they come")
    given = parser.parse_args(arguments)
    numbers = shares(given.cases)
    if given.only:
        one = range(given.cases) if given.number is None else range(given.number, given.number + 1)
        numbers = {given.only: one}
    findings: list[Finding] = []
    done = Counter[str]()
    log = given.log.open("a") if given.log else sys.stderr

    def tell(entry: str, finding: Finding | None) -> None:
        done[entry] += 1
        if done.total() % 250 == 0:
            print(f"{done.total()} cases", file=log, flush=True)
        if finding is not None:
            findings.append(finding)
            print(_described([finding], given.seed), file=log, flush=True)

    load_rooms()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    try:
        _prepare_apart()
        counts = fuzz(ENTRIES, numbers, seed=given.seed, seconds=given.seconds, tell=tell)
    finally:
        shutil.rmtree(WHOLE, ignore_errors=True)
    print(_table(counts, given.seed))
    alike: dict[str, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(f"{finding.verdict} {finding.told[-150:]}", []).append(finding)
    for some in alike.values():
        print(_described(some, given.seed))
    return 1 if findings else 0


def _prepare_apart() -> None:
    """Makes the intact folders in a process of its own: who has computed must not be forked."""
    process = multiprocessing.get_context("fork").Process(target=_prepare)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit("the intact folders could not be made")


def _prepare() -> None:
    with tempfile.TemporaryFile() as lost:
        os.dup2(lost.fileno(), 1)
        os.dup2(lost.fileno(), 2)
        prepare()


def _table(counts: Mapping[str, Counter[str]], seed: int) -> str:
    rows = {**counts, "all": sum(counts.values(), start=Counter[str]())}
    lines = [f"seed {seed:<12}" + "".join(f"{name:>13}" for name in ("cases", *VERDICTS))]
    for entry, verdicts in rows.items():
        numbers = (verdicts.total(), *(verdicts[name] for name in VERDICTS))
        lines.append(f"{entry:<17}" + "".join(f"{number:>13}" for number in numbers))
    return "\n".join(lines)


def _described(alike: Sequence[Finding], seed: int) -> str:
    one = alike[0]
    again = f"python -m tests.fuzz --seed {seed} --only {one.entry!r} --number {one.number}"
    words = one.words if len(one.words) < 1500 else one.words[:1500] + " ..."
    return f"\n--- {one.verdict} ({len(alike)}): {again}\nengram {words}\n{one.told}"


if __name__ == "__main__":
    sys.exit(main())
