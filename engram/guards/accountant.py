"""The privacy accountant: how much privacy a run has spent."""

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engram.guards.aggregation import spent
from engram.guards.calibration import noise_multiplier, sampling_rate
from engram.guards.guarantee import adjacency
from engram.settings.errors import Refused, RunStopped
from engram.settings.experiment import Experiment


class PrivacyAccountant:
    """Counts the rounds of a private run, and those in which each client was asked.

    A round is counted before anybody is asked, whatever its outcome. After a crash a run repeats
    the rounds since its last checkpoint. If noise is secret, a repeated round has new noise and so
    counts again, since it releases new information about the clients.

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
        examples: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self._examples = examples
        self._experiment = experiment
        self._file = file
        self._asked: Counter[int] = Counter()
        self._rounds, self._repeated = done, 0
        e = experiment
        if file is None:
            cohorts = {row["round"]: row["cohort"] for row in rows if "cohort" in row}
            for server_round in range(1, done + 1):
                self._asked.update(cohorts.get(server_round, range(e.num_clients)))
        elif done or file.is_file():
            try:
                lines = file.read_text().splitlines()
                for line in lines:
                    self._asked.update(int(client) for client in line.split())
            except (OSError, ValueError) as error:
                raise Refused(f"{file} is damaged: {error}") from error
            self._rounds, self._repeated = len(lines), len(lines) - done
            if len(lines) < done:
                raise Refused(f"{file} is damaged: it has {len(lines)} of {done} rounds")

    def note(self, clients: Sequence[int]) -> None:
        """Records the clients of a round, before they are asked.

        Raises:
            RunStopped: Rounds that were repeated have used up the target ``epsilon``.
        """
        self._within_target(clients)
        if self._file is not None:
            self._file.touch(0o600)
            with self._file.open("a") as file:
                file.write(" ".join(map(str, clients)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        self._asked.update(clients)
        self._rounds += 1

    def _within_target(self, clients: Sequence[int]) -> None:
        e = self._experiment
        if not e.epsilon or self._rounds < e.rounds:
            return
        after = self._cost(self._asked + Counter(clients), self._rounds + 1)
        if after > e.epsilon:
            raise RunStopped(
                f"another round would take epsilon to {after:.4g}, above the target of "
                f"{e.epsilon:g}: rounds were repeated, with new noise, when the run was resumed"
            )

    def _cost(self, asked: Counter[int], rounds: int) -> float:
        if self._experiment.privacy == "example":
            return self._of_rows(asked)
        secret = self._experiment.secret_cohorts
        return spent(self._experiment, rounds if secret else max(asked.values(), default=0))

    def _of_rows(self, asked: Counter[int]) -> float:
        """Returns the largest epsilon of a row: it grows with rounds, and falls with rows."""
        examples, most, least = self._examples(), 0.0, math.inf
        for client, times in asked.most_common():
            if examples[client] < least:
                least = examples[client]
                most = max(most, spent(self._experiment, self._looks(times), least))
        return most

    def _looks(self, times: int) -> int:
        """Returns how often a client's rows were looked at, which was asked so many times."""
        return min(times, 1 + self._repeated) if self._experiment.own.turns else times

    @property
    def spent(self) -> dict[str, float]:
        """The ``epsilon`` of the client that was asked most often, or of any row; and ``delta``.

        Every other client's epsilon is at most this one. Cohorts do not depend on data, so that
        rounds without a client cost it nothing. Where they are secret, each round costs every
        client the same.
        """
        return {"epsilon": self._cost(self._asked, self._rounds), "delta": self._experiment.delta}

    def row(self, clients: Sequence[int]) -> dict[str, Any]:
        """The entries of a round's metrics: ``spent``, and the rows of its clients by which it is.

        ``training-rows`` are there where epsilon is of single rows.
        """
        if self._experiment.privacy != "example":
            return self.spent
        examples = self._examples()
        return self.spent | {"training-rows": {str(c): examples[c] for c in clients}}

    @property
    def claim(self) -> dict[str, Any]:
        """The entries of a run's results: ``spent``, and what it is about.

        ``adjacency`` names the pairs of federations that cannot be told apart; ``sampling-rate`` is
        there where epsilon is amplified by sampling.
        """
        e = self._experiment
        rate = {"sampling-rate": sampling_rate(e)} if e.secret_cohorts else {}
        return {
            **self.spent,
            "adjacency": adjacency(e),
            "noise-multiplier": noise_multiplier(e),
            **rate,
        }
