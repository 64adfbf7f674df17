"""The privacy accountant: how much privacy a run has spent."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from federation.errors import Refused
from federation.experiment import Experiment
from federation.protection import spent
from strategies.cohorts import draw_cohort


class PrivacyAccountant:
    """Counts the rounds of a private run in which each client was asked.

    A round is counted before anybody is asked, whatever its outcome. After a crash a run repeats
    the rounds since its last checkpoint. If noise is secret, a repeated round has new noise and so
    counts again, since it releases new information about the clients.

    Args:
        experiment: The settings. Without privacy nothing is counted.
        done: The round of the last checkpoint: rounds 1 to this one are done.
        file: Where each round's clients are recorded before they are asked; None if a repeated
            round has the same noise, and so releases nothing new.

    Raises:
        Refused: If the file is damaged.
    """

    def __init__(self, experiment: Experiment, done: int, file: Path | None) -> None:
        self._experiment = experiment
        self._file = file
        self._asked: Counter[int] = Counter()
        e = experiment
        if e.privacy == "none":
            return
        if file is None:  # a simulation, which all clients have joined
            for server_round in range(1, done + 1):
                size, shards = e.clients_per_round, e.shards
                self._asked.update(
                    draw_cohort(e.seed, server_round, e.num_clients, size, shards=shards)
                )
        elif file.is_file():
            try:
                for line in file.read_text().splitlines():
                    self._asked.update(int(client) for client in line.split())
            except ValueError as error:
                raise Refused(f"{file} is damaged: {error}") from error

    def note(self, clients: Sequence[int]) -> None:
        """Records the clients of a round, before they are asked."""
        if self._experiment.privacy == "none":
            return
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(" ".join(map(str, clients)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        self._asked.update(clients)

    @property
    def spent(self) -> dict[str, float]:
        """The ``epsilon`` of the client that was asked most often, and its ``delta``.

        Empty without privacy. Every other client's epsilon is at most this one. Cohorts do not
        depend on data, so that rounds without a client cost it nothing.
        """
        e = self._experiment
        if e.privacy == "none":
            return {}
        return {"epsilon": spent(e, max(self._asked.values(), default=0)), "delta": e.delta}
