"""The privacy that a run has spent."""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from engram.guards.accounting.composition import epsilon_by_answers
from engram.guards.accounting.guarantee import adjacency
from engram.guards.calibration import noise_multiplier, plan_of
from engram.guards.presets import protections
from engram.settings.errors import Refused, RunStopped
from engram.settings.experiment import Experiment


class PrivacyAccountant:
    """Counts the rounds of a private run, and those in which each client was asked.

    A round is counted before anybody is asked, whatever its outcome. After a crash a run repeats
    the rounds since its last checkpoint, which count again if noise is secret, since it is new.

    Args:
        experiment: The settings of a private run.
        done: The round of the last checkpoint: rounds 1 to this one are done.
        file: Where each round's clients are recorded before they are asked; None if a repeated
            round has the same noise, and so releases nothing new.
        rows: The metrics of the rounds that are done, whose cohorts count where there is no file.
            A round whose metrics were lost counts for every client.
        examples: Returns each client's number of training rows.

    Raises:
        Refused: If the file is damaged.
    """

    def __init__(
        self,
        experiment: Experiment,
        done: int,
        file: Path | None,
        rows: Sequence[Mapping[str, Any]] = (),
        examples: Callable[[], Sequence[int] | Mapping[int, int]] = tuple,
    ) -> None:
        self._experiment, self._file = experiment, file
        self._plan = plan_of(experiment)
        releases, delta = protections(experiment).releases, experiment.delta
        self._by_rows = any(release.unit == "row" for release in releases(self._plan))
        self._rows = examples if self._by_rows else lambda: defaultdict[int, int](lambda: 1)
        self._epsilon = cache(  # of a number of rows
            lambda rows: epsilon_by_answers(releases(self._plan._replace(rows=rows)), delta)
        )
        if file is not None and (done or file.is_file()):
            known = _read_asked(file, least=done)
        else:
            cohorts = {row["round"]: row["cohort"] for row in rows if "cohort" in row}
            everyone = [*range(experiment.num_clients)]
            known = [cohorts.get(number, everyone) for number in range(1, done + 1)]
        self._asked = Counter(chain.from_iterable(known))
        self._rounds, self._repeated = len(known), len(known) - done

    def note(self, clients: Sequence[int]) -> None:
        """Records the clients of a round, before they are asked.

        Raises:
            RunStopped: Rounds that were repeated have used up the target ``epsilon``.
        """
        e, asked, rounds = self._experiment, self._asked + Counter(clients), self._rounds + 1
        if e.epsilon and rounds > e.rounds and (after := self._largest(asked, rounds)) > e.epsilon:
            raise RunStopped(
                f"another round would take epsilon to {after:.4g}, above the target of "
                f"{e.epsilon:g}: rounds were repeated, with new noise, when the run was resumed"
            )
        if self._file is not None:
            self._file.touch(0o600)
            with self._file.open("a") as lines:
                lines.write(" ".join(map(str, clients)) + "\n")
                lines.flush()
                os.fsync(lines.fileno())
        self._asked, self._rounds = asked, rounds

    def _largest(self, asked: Counter[int], rounds: int) -> float:
        """Returns the largest epsilon: it grows with answers, and falls with rows."""
        if self._plan.secret:
            return self._spent(rounds)
        found, least, rows = 0.0, math.inf, self._rows()
        for client, times in asked.most_common(None if self._by_rows else 1):
            if rows[client] < least:
                least = rows[client]
                found = max(found, self._spent(times, least))
        return found

    def _spent(self, times: int, rows: int = 1) -> float:
        # Of turns each round has its own, so that only repeated rounds look again.
        answers = min(times, 1 + self._repeated) if self._plan.turns else times
        return self._epsilon(rows)(answers)

    def by_client(self) -> dict[int, float]:
        """Returns epsilon of each client that was asked, or of its rows; of all if it is secret."""
        if self._plan.secret:
            return dict.fromkeys(range(self._experiment.num_clients), self._spent(self._rounds))
        rows = self._rows()
        return {c: self._spent(times, rows[c]) for c, times in sorted(self._asked.items())}

    @property
    def spent(self) -> dict[str, float]:
        """The ``epsilon`` of the client that was asked most often, or of any row; and ``delta``.

        Cohorts do not depend on data, so that rounds without a client cost it nothing. Where they
        are secret, each round costs every client the same.
        """
        most = self._largest(self._asked, self._rounds)
        return {"epsilon": most, "delta": self._experiment.delta}

    def row(self, clients: Sequence[int]) -> dict[str, Any]:
        """The entries of a round's metrics: ``spent``, and ``training-rows`` by which it is."""
        rows = self._rows()
        own = {"training-rows": {str(c): rows[c] for c in clients}} if self._by_rows else {}
        return self.spent | own

    @property
    def claim(self) -> dict[str, Any]:
        """The entries of a run's results: ``spent``, and its definition of privacy."""
        e, rate = self._experiment, {"sampling-rate": self._plan.rate} if self._plan.secret else {}
        noise = {"adjacency": adjacency(e), "noise-multiplier": noise_multiplier(e)}
        return self.spent | noise | rate


def _read_asked(file: Path, least: int) -> list[list[int]]:
    """Returns the clients that were asked, release by release, as a run's file has them.

    Raises:
        Refused: It is damaged, or has fewer than ``least`` releases.
    """
    try:
        found = [[*map(int, line.split())] for line in file.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise Refused(f"{file} is damaged: {error}") from error
    if len(found) < least:
        raise Refused(f"{file} is damaged: it has {len(found)} of {least} rounds")
    return found
