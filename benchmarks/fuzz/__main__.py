"""Runs the fuzzer, and prints its results: ``python -m benchmarks.fuzz --cases 5000 --seed 0``.

Exits with 1 if any case ended in a traceback, a hang, or a refusal that is not a short line.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

import torch

from benchmarks.fuzz.entries import ENTRIES, shares
from benchmarks.fuzz.folders import prepare
from benchmarks.fuzz.harness import Outcomes, fuzz


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0, help="most seconds of a case")
    parser.add_argument("--only", choices=sorted(ENTRIES), help="only this entry point")
    parser.add_argument("--number", type=int, help="only this case of it")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    prepare()  # once, before processes are forked
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    numbers = shares(given.cases)
    if given.only:
        one = range(given.cases) if given.number is None else range(given.number, given.number + 1)
        numbers = {given.only: one}
    found = fuzz(ENTRIES, numbers, seed=given.seed, seconds=given.seconds, tell=_tell)
    _print(found, given.seed)
    return 1 if found.findings else 0


def _tell(done: int) -> None:
    if done % 100 == 0:
        print(f"\r{done}", end="", file=sys.stderr, flush=True)


def _print(found: Outcomes, seed: int) -> None:
    columns = ("accepted", "refused", "unclear", "traceback", "hang")
    heading = "".join(f"{column:>11}" for column in ("cases", *columns))
    print(f"seed {seed:<12}{heading}")
    rows = {
        **found.counts,
        "all": sum(found.counts.values(), start=type(next(iter(found.counts.values())))()),
    }
    for entry, counts in rows.items():
        numbers = (counts.total(), *(counts[column] for column in columns))
        print(f"{entry:<17}" + "".join(f"{number:>11}" for number in numbers))
    alike: dict[tuple[str, str, str], list[int]] = {}
    for entry, number, verdict, told in found.findings:
        alike.setdefault((entry, verdict, told), []).append(number)
    for (entry, verdict, told), cases in alike.items():
        print(f"\n--- {verdict}: --seed {seed} --only {entry!r} --number {cases[0]}", end=" ")
        print(f"({len(cases)} in all)\n{told}")


if __name__ == "__main__":
    sys.exit(main())
