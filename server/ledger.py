"""What privacy a run has spent on its clients' data."""

import os
from collections import Counter
from pathlib import Path

from federation.errors import Refused
from federation.experiment import Experiment
from federation.protection import spent
from strategies.federated import draw_cohort

__all__ = ["Ledger"]


class Ledger:
    """Counts in how many rounds of a private run each client was asked.

    A round counts from before anybody is asked, whatever comes of it. After a crash a run goes on
    at its last checkpoint, and repeats rounds. Where noise is secret, and so another each time,
    they count each time: each shows the clients anew.

    Args:
        experiment: The settings. Without privacy nothing is counted.
        done: The run's last checkpoint: rounds 1 to this one have been.
        file: Where rounds are noted before they begin, and found again; None where a round that
            is repeated has the same noise as before, and shows nothing new.

    Raises:
        Refused: The file is damaged.
    """

    def __init__(self, experiment: Experiment, done: int, file: Path | None) -> None:
        self._experiment = experiment
        self._file = file
        self._asked: Counter[int] = Counter()
        begun = [*range(1, done + 1)]
        if file is not None and file.is_file():
            try:
                begun = [int(line) for line in file.read_text().split()]
            except ValueError as error:
                raise Refused(f"{file} is damaged: {error}") from error
        for server_round in begun:
            self._count(server_round)

    def begin(self, server_round: int) -> None:
        """Notes that the clients of a round are about to be asked."""
        if self._file is not None and self._experiment.privacy != "none":
            with self._file.open("a") as file:
                file.write(f"{server_round}\n")
                file.flush()
                os.fsync(file.fileno())
        self._count(server_round)

    def _count(self, server_round: int) -> None:
        e = self._experiment
        if e.privacy != "none":
            self._asked.update(
                draw_cohort(
                    e.seed, server_round, e.num_clients, e.clients_per_round, shards=e.shards
                )
            )

    @property
    def spent(self) -> dict[str, float]:
        """The ``epsilon`` of the client that was asked most often, and its ``delta``.

        Empty without privacy. Every other client's epsilon is at most this one. Who is drawn
        depends on nobody's data, so that rounds without a client cost it nothing.
        """
        e = self._experiment
        if e.privacy == "none":
            return {}
        return {"epsilon": spent(e, max(self._asked.values(), default=0)), "delta": e.delta}
