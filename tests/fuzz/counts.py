"""Counts of a fuzzer's cases by what came of them, what was wrong, and its command line."""

import argparse
import resource
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path


class Counts:
    """Counts of answers by outcome, and a line about each thing that is wrong."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []

    def __str__(self) -> str:
        told = ", ".join(f"{name} {count}" for name, count in sorted(self.answers.items()))
        return f"{self.answers.total()} cases: {told}"


class Measured(Counts):
    """Counts of a fuzzer with a limit of memory, in MiB."""

    most = 256.0

    def __init__(self) -> None:
        super().__init__()
        self._before = _largest()

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.mebibytes:.0f} MiB more of {self.most:.0f}"

    def begin(self) -> None:
        """Measures from here on: what every case needs is loaded; what was counted stays out."""
        self.answers.clear()
        self._before = _largest()

    @property
    def mebibytes(self) -> float:
        """Growth of this process's largest memory since ``begin``."""
        return (_largest() - self._before) / 2**20

    def end(self) -> None:
        """Notes it if the limit was passed."""
        if self.mebibytes > self.most:
            self.wrong.append(f"{self.mebibytes:.0f} MiB more memory than {self.most:.0f} at most")


def _largest() -> int:
    """Returns the most bytes of memory that this process has had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(
    prog: str, doc: str | None, cases: str, number: int, attack: Callable[[Path, int, int], Counts]
) -> int:
    """Runs a fuzzer's command line, which prints its counts; returns the exit status.

    ``attack`` runs so many cases in an empty folder, from a seed; ``cases`` is their option's name.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description=doc)
    parser.add_argument(f"--{cases}", dest="number", type=int, default=number)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = attack(Path(folder), given.number, given.seed)
    print(seen)
    for line, count in Counter(seen.wrong).most_common(20):
        print(f"{count} times: {line}")
    return 1 if seen.wrong else 0
