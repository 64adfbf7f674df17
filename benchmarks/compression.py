"""Accuracy and bytes of messages in fewer bytes.

``python -m benchmarks.compression [--methods M ...] [--seeds N] [--rounds N]``: methods on digits,
by each way to compress. Bytes are those of the arrays in a whole run, as shares of those of a run
without compression; neither they nor accuracies depend on the machine.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, cast

from engram.runs.record import RunRecord
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate

_GIVEN: Final[Mapping[str, Any]] = {
    "num_clients": 20,
    "clients_per_round": 10,
    "partition": "dirichlet",
    "local_steps": 10,
    "batch_size": 10,
}
_WAYS: Final = ("none", "8-bit", "4-bit", "top-k", "low-rank")


class Found(NamedTuple):
    """The outcome of a run.

    Attributes:
        accuracy: The mean accuracy over clients after the last round.
        sent: Bytes that clients have received.
        received: Bytes that they have sent.
    """

    accuracy: float
    sent: float
    received: float


def ended(method: str, compress: str, seed: int, rounds: int, folder: Path) -> Found:
    """Runs an experiment."""
    e = Experiment(
        method=method,
        compress=cast("Any", compress),
        seed=seed,
        num_rounds=rounds,
        eval_every=rounds,
        checkpoint_every=rounds,
        **_GIVEN,
    )
    results = simulate(e, folder)
    rows = RunRecord.open(folder).rows()[1:]
    # Without compression, as many bytes go both ways, and no row says so.
    plain = sum(len(row["cohort"]) for row in rows) * results["client-bytes"] / 2
    sent, received = (
        sum(row.get(f"bytes-{way}", 0) for row in rows) or plain for way in ("sent", "received")
    )
    return Found(results["accuracy"], sent, received)


def told(compress: str, found: Sequence[Found], plain: Sequence[Found]) -> str:
    """Returns a line of the table."""
    accuracies = [run.accuracy for run in found]
    off = [a.accuracy - b.accuracy for a, b in zip(found, plain, strict=True)]
    shares = [
        fmean(getattr(a, way) / getattr(b, way) for a, b in zip(found, plain, strict=True))
        for way in ("sent", "received")
    ]
    return (
        f"  {compress:9} {fmean(accuracies):.3f} ({min(accuracies):.3f} to {max(accuracies):.3f})"
        f"  {fmean(off):+.3f}  to clients {shares[0]:.3f}  from clients {shares[1]:.3f}"
    )


def main() -> None:
    """Prints a table of accuracies and bytes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedper", "local-moml"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=150)
    given = parser.parse_args()
    for method in given.methods:
        print(f"{method}, {given.rounds} rounds, {given.seeds} seeds", flush=True)
        plain: list[Found] = []
        for compress in _WAYS:
            with TemporaryDirectory() as folder:
                found = [
                    ended(method, compress, seed, given.rounds, Path(folder) / str(seed))
                    for seed in range(given.seeds)
                ]
            plain = plain or found
            print(told(compress, found, plain), flush=True)


if __name__ == "__main__":
    main()
