"""The privacy accountant: how much privacy a run has spent."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from federation.aggregation import spent
from federation.errors import Refused
from federation.experiment import Experiment


class PrivacyAccountant:
    """Counts the rounds of a private run in which each client was asked.

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

    Raises:
        Refused: If the file is damaged.
    """

    def __init__(
        self,
        experiment: Experiment,
        done: int,
        file: Path | None,
        rows: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._experiment = experiment
        self._file = file
        self._asked: Counter[int] = Counter()
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
            if len(lines) < done:
                raise Refused(f"{file} is damaged: it has {len(lines)} of {done} rounds")

    def note(self, clients: Sequence[int]) -> None:
        """Records the clients of a round, before they are asked."""
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(" ".join(map(str, clients)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        self._asked.update(clients)

    @property
    def spent(self) -> dict[str, float]:
        """The ``epsilon`` of the client that was asked most often, and its ``delta``.

        Every other client's epsilon is at most this one. Cohorts do not depend on data, so that
        rounds without a client cost it nothing.
        """
        e = self._experiment
        return {"epsilon": spent(e, max(self._asked.values(), default=0)), "delta": e.delta}
