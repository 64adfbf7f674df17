"""The privacy that a run has spent."""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from flwr.app import Message

from engram.guards.accounting import composition
from engram.guards.accounting.client_epsilon import releases_in
from engram.guards.accounting.guarantee import adjacency
from engram.guards.calibration import noise_multiplier, plan_of
from engram.guards.presets import protections
from engram.settings.errors import Refused, RunStopped
from engram.settings.experiment import Experiment
from engram.wire.wire import CLIENTS, NOISE, read_list


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
        examples: Callable[[], Sequence[int] | Mapping[int, int]] = tuple,
    ) -> None:
        self._experiment, self._file, self._examples = experiment, file, examples
        self._plan = plan_of(experiment)
        hidden = protections(experiment).releases(self._plan)
        self._by_rows = any(release.unit == "row" for release in hidden)
        self._asked: Counter[int] = Counter()
        self._rounds, self._repeated = done, 0
        if file is None:
            cohorts = {row["round"]: row["cohort"] for row in rows if "cohort" in row}
            for server_round in range(1, done + 1):
                self._asked.update(cohorts.get(server_round, range(experiment.num_clients)))
        elif done or file.is_file():
            releases = releases_in(file)
            self._asked.update(chain.from_iterable(releases))
            self._rounds, self._repeated = len(releases), len(releases) - done
            if len(releases) < done:
                raise Refused(f"{file} is damaged: it has {len(releases)} of {done} rounds")

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
        after = self._largest(self._asked + Counter(clients), self._rounds + 1)
        if after > e.epsilon:
            raise RunStopped(
                f"another round would take epsilon to {after:.4g}, above the target of "
                f"{e.epsilon:g}: rounds were repeated, with new noise, when the run was resumed"
            )

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

    def _rows(self) -> Sequence[int] | Mapping[int, int]:
        return self._examples() if self._by_rows else defaultdict(lambda: 1)

    def _spent(self, times: int, rows: int = 1) -> float:
        # Of turns each round has its own, so that only repeated rounds look again.
        answers = min(times, 1 + self._repeated) if self._plan.turns else times
        return spent(self._experiment, answers, rows)

    def by_client(self) -> dict[int, float]:
        """Returns epsilon of each client that was asked, or of its rows.

        Where cohorts are secret every round tells as much of those that were not drawn.
        """
        if self._plan.secret:
            return dict.fromkeys(range(self._experiment.num_clients), self._spent(self._rounds))
        rows = self._rows()
        return {c: self._spent(times, rows[c]) for c, times in sorted(self._asked.items())}

    @property
    def spent(self) -> dict[str, float]:
        """The ``epsilon`` of the client that was asked most often, or of any row; and ``delta``.

        Every other client's epsilon is at most this one. Cohorts do not depend on data, so that
        rounds without a client cost it nothing. Where they are secret, each round costs every
        client the same.
        """
        most = self._largest(self._asked, self._rounds)
        return {"epsilon": most, "delta": self._experiment.delta}

    def row(self, clients: Sequence[int]) -> dict[str, Any]:
        """The entries of a round's metrics: ``spent``, and the rows of its clients by which it is.

        ``training-rows`` are there where epsilon is of single rows.
        """
        if not self._by_rows:
            return self.spent
        examples = self._examples()
        return self.spent | {"training-rows": {str(c): examples[c] for c in clients}}

    @property
    def claim(self) -> dict[str, Any]:
        """The entries of a run's results: ``spent``, and its definition of privacy.

        ``adjacency`` names the pairs of federations that cannot be told apart; ``sampling-rate`` is
        there where epsilon is amplified by sampling.
        """
        e, rate = self._experiment, {"sampling-rate": self._plan.rate} if self._plan.secret else {}
        noise = {"adjacency": adjacency(e), "noise-multiplier": noise_multiplier(e)}
        return {**self.spent, **noise, **rate}


def spent(e: Experiment, answers: int, rows: int = 1) -> float:
    """Returns the epsilon, at ``delta``, of a client after a number of answers.

    Where cohorts are secret, these are all rounds that have begun; otherwise those in which the
    client was asked. Where single rows are hidden, it is that of a row of a client with so many.

    Raises:
        Refused: As ``noise_multiplier``, or dp-accounting is needed and not installed.
    """
    return composition.spent(protections(e).releases(plan_of(e, rows)), answers, e.delta)


def noised_by(replies: Iterable[Message], clients: int) -> list[int]:
    """Returns the clients whose scores have the noise of local privacy, as nodes report it."""
    found = set[int]()
    for reply in replies:
        record = reply.content.config_records.get(CLIENTS) if reply.has_content() else None
        if record is not None and NOISE in record:
            with suppress(KeyError, TypeError):  # which screening leaves out
                found.update(read_list(record, "ids", int))
    return sorted(found & {*range(clients)})
