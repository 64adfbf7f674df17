"""Record of trials: an append-only file of JSON lines, which survives a crash at any instant."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pydantic import TypeAdapter

from engram.settings.errors import Refused
from engram.settings.fields import Scalar
from engram.settings.files import parse_json, read_file, replace_file

TRIALS: Final = "trials.jsonl"
State = Literal["going", "dropped", "diverged", "impossible", "done"]


class Trial(NamedTuple):
    """Settings that were tried.

    Attributes:
        number: From 0. Trial 0 has the defaults.
        settings: By key.
        state: done; dropped, at a rung; diverged; impossible, where the method refuses them
            together; or going, when the search was interrupted.
        round: After which it was scored last.
        scores: ``Metric.center`` over clients of each seed's run then; empty if there is none.
        reason: Why it has no score, in words.
    """

    number: int
    settings: dict[str, Scalar]
    state: State = "going"
    round: int = 0
    scores: tuple[float, ...] = ()
    reason: str = ""

    @property
    def value(self) -> float | None:
        """The mean over seeds; None if a run diverged, or none was scored."""
        return sum(self.scores) / len(self.scores) if self.scores else None

    @property
    def decided(self) -> bool:
        """Whether its fate is known."""
        return self.state != "going"


_TRIAL: Final = TypeAdapter(Trial)
_LARGEST: Final = 2**28  # bytes of a file of trials


def append(folder: Path, trial: Trial) -> None:
    """Writes a trial as it is now."""
    (folder / TRIALS).touch(0o600)
    with (folder / TRIALS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(trial._asdict()) + "\n")


def mend(folder: Path) -> list[Trial]:
    """Returns the trials, and removes a last line that a crash has cut off.

    Raises:
        Refused: As ``read_trials`` says.
    """
    trials, path = read_trials(folder), folder / TRIALS
    if trials and not path.read_bytes().endswith(b"\n"):
        lines = "".join(json.dumps(trial._asdict()) + "\n" for trial in trials)
        replace_file(path, lines.encode())
    return trials


def read_trials(folder: Path) -> list[Trial]:
    """Returns the trials as they were written last, by number.

    Raises:
        Refused: The file is damaged before its last line, which a crash may have cut off.
    """
    path = folder / TRIALS
    try:
        data = read_file(path, most=_LARGEST, links=False) if os.path.lexists(path) else b""
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    lines = data.splitlines()
    found: dict[int, Trial] = {}
    for number, line in enumerate(lines, start=1):
        try:
            trial = _TRIAL.validate_python(parse_json(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise Refused(f"{path} is damaged: line {number} is no trial") from error
        found[trial.number] = trial
    return [found[number] for number in sorted(found)]


def ranked(trials: Sequence[Trial], sign: int) -> list[Trial]:
    """Returns the trials that have a score, the best of those with the most rounds first.

    ``sign`` is 1 where higher values are better, else -1.
    """
    scored = [trial for trial in trials if trial.value is not None]
    return sorted(scored, key=lambda trial: (-trial.round, -sign * (trial.value or 0.0)))
