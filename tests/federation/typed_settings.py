"""Settings by name, as type checkers see them: mypy reads this file, and nobody runs it.

An error that is ignored here and is none any more is one of its own (``warn_unused_ignores``).
"""

import engram


def right() -> None:
    engram.Experiment(method="pfedme", eta=0.2, lambda_=3, num_rounds=50, out="runs/a")
    engram.simulate(method="a-plug-in", partition="iid", eta=1, resume="runs/a")
    engram.simulate(method="molar", family="poisson", intercept=False)
    engram.compare(methods=["fedavg"], seeds=2, seed=7, hidden="8,8")
    engram.compare(methods={"ditto": {"eta": 0.3}, "fedavg": {}}, tuned=(16, 3))


def wrong() -> None:
    engram.Experiment(etta=0.2)  # type: ignore[call-arg]
    engram.Experiment(eta="much")  # type: ignore[arg-type]
    engram.Experiment(num_rounds=2.5)  # type: ignore[arg-type]
    engram.simulate(family="gamma")  # type: ignore[arg-type]
    engram.simulate(clients_per_rounds=5)  # type: ignore[call-arg]
    engram.compare(batch_size="4")  # type: ignore[arg-type]
