"""The privacy that a run's settings promise, and that it has spent."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flwr.app import Message

from engram.guards.accounting.calibration import (
    looks,
    noise_multiplier,
    reach,
    row_rate,
    row_releases,
    sampled_epsilon,
    sampling_rate,
)
from engram.guards.accounting.client_epsilon import releases_in
from engram.guards.accounting.gaussian import concentrated_epsilon
from engram.settings.errors import Refused, RunStopped
from engram.settings.experiment import Experiment
from engram.wire.wire import CLIENTS, NOISE, read_list

_MOST: Final = 10.0
"""Largest epsilon that protects to a reasonable degree: tier 2 of Ponomareva et al., JAIR 2023."""

_SAMPLING: Final = {
    "poisson": "Poisson sampling",
    "without-replacement": "sampling without replacement",
}


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
            releases = releases_in(file)
            for clients in releases:
                self._asked.update(clients)
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
                # Of turns each round has its own, so that only repeated rounds look again.
                seen = min(times, 1 + self._repeated) if self._experiment.own.turns else times
                most = max(most, spent(self._experiment, seen, least))
        return most

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
        """The entries of a run's results: ``spent``, and its definition of privacy.

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


def spent(e: Experiment, rounds: int, rows: int = 0) -> float:
    """Returns the epsilon, at ``delta``, of a client after a number of rounds.

    Where cohorts are secret, these are all rounds that have begun; otherwise those in which the
    client was asked. ``reach`` says what is hidden. Only a client's
    updates are accounted for, not the other numbers that it sends. Where aggregation is secure,
    central noise comes in shares of which no exact figure is known: see
    ``engram.guards.secure.noise``. Where privacy is example, it is that of a row of a client with
    so many ``rows``: those of its steps are drawn in secret.

    Raises:
        Refused: As ``noise_multiplier`` and ``sampled_epsilon``.
    """
    if e.aggregation == "secure":
        return concentrated_epsilon(rounds / (2 * e.noise_multiplier**2), e.delta)
    multiplier, rate, releases = noise_multiplier(e) / reach(e), sampling_rate(e), rounds
    if e.privacy == "example":
        rate, releases = row_rate(e, rows), rounds * row_releases(e)
    return sampled_epsilon(e.sampling, multiplier, rate, releases, e.delta)


def adjacency(e: Experiment) -> str:
    """Describes the adjacency of federations under a private run."""
    if e.privacy == "example" and e.own.turns:
        return "one of a client's turns is replaced by any other"
    if e.privacy == "example":
        return "one of a client's training rows is zeroed out (zero-out adjacency)"
    if reach(e) == 2:
        return "one client's data are replaced by any others"
    return "one client is added or removed"


def guarantee(e: Experiment) -> str:
    """Describes the largest epsilon of a run, and its meaning; "" without privacy.

    Unless cohorts are secret, it is that of a client that is asked in every round.
    """
    if e.privacy == "none":
        return ""
    noise = f"noise-multiplier {noise_multiplier(e):g}{' (for epsilon)' if e.epsilon else ''}"
    bound = f"clip {e.clip:g}{' at first' if e.clip_quantile else ''}"
    if not _is_known(e):
        return (
            f"{e.privacy} privacy by {noise} and {bound}, where {adjacency(e)}: epsilon "
            "follows from each client's number of rows, and the results have the largest one; "
            "training losses are not computed, and scores are not covered"
        )
    told = (
        f"{e.privacy} privacy by {noise} and {bound}: "
        f"epsilon at most {spent(e, looks(e)):.4g} at delta {e.delta:g} after {e.rounds} rounds, "
        f"where {adjacency(e)}"
    )
    if e.secret_cohorts:
        told += (
            f", amplified by {_SAMPLING[e.sampling]} at rate {sampling_rate(e):.4g} against "
            "whoever sees the models, and not who takes part"
        )
    if e.privacy == "local":
        each = ", and each evaluation by sites costs as much as a round"
        told += ", sites' scores included" if e.epsilon else each
    elif e.validates:
        told += "; scores, and a round chosen by them, are not covered"
    if not is_weak(e):
        return told
    mended = "lower epsilon" if e.epsilon else "raise noise-multiplier, or ask for fewer rounds"
    return f"{told}; above 10, which protects hardly anybody: {mended}"


def is_weak(e: Experiment) -> bool:
    """Whether a run has privacy by name only: its epsilon may be above 10."""
    return e.privacy != "none" and _is_known(e) and spent(e, looks(e)) > _MOST


def _is_known(e: Experiment) -> bool:
    """Whether epsilon follows from the settings alone, and not from clients' rows, too."""
    return e.privacy != "example" or "batch_size" in e.own.unread


def noised_by(replies: Iterable[Message], clients: int) -> list[int]:
    """Returns the clients whose scores have the noise of local privacy, as nodes report it."""
    found = set[int]()
    for reply in replies:
        record = reply.content.config_records.get(CLIENTS) if reply.has_content() else None
        if record is None or NOISE not in record:
            continue
        try:
            found.update(read_list(record, "ids", int))
        except (KeyError, TypeError):  # which screening leaves out
            continue
    return sorted(found & {*range(clients)})
