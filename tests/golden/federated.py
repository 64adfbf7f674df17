"""Runs of every federated method in process: what is recorded, the last model, the memories."""

from engram.runs.run import Run
from engram.simulations.engine import simulate
from engram.wire.tensors import tensors_from_bytes
from tests.golden.numbers import differences, plain, read
from tests.support import small

# The defaults when they were recorded.
_META = {"hessian": "exact", "eta": 0.1}
MOML = {"method": "local-moml"} | _META
PER = {"method": "per-fedavg"} | _META
PFEDME = {"method": "pfedme"}
FEDAVG = {"method": "fedavg"}
TABLE = {"num_clients": 12, "timeout": 5.0}
BANDIT = {"hidden": "6,5", "replay_batch": 4, "replay_rows": 6, "meta_steps": 2, "num_clients": 6}
MOLAR = TABLE | {"method": "molar", "dataset": "sparse-linear"}
ARMS = TABLE | {"method": "molar-bandit", "dataset": "sparse-linear", "num_rounds": 5}
TURNS = {"method": "meta-ban", "num_rounds": 40, "timeout": 5.0, "group_cap": 0} | BANDIT

SETTINGS = {
    **{
        f"{first['method']}, {hessian}": first | {"hessian": hessian}
        for first in (MOML, PER)
        for hessian in ("exact", "first-order", "finite-difference")
    },
    **{
        f"local-moml, carried, {hessian}": MOML | {"memory": "carry", "hessian": hessian}
        for hessian in ("exact", "first-order")
    },
    "pfedme": PFEDME,
    "pfedme, server-mix": PFEDME | {"server_mix": 1.7, "inner_steps": 2},
    "fedavg": FEDAVG,
    **{
        f"{first['method']}, universal": first | {"server_step": "universal"}
        for first in (MOML, FEDAVG, PFEDME)
    },
    **{
        f"{first['method']}, {merge}": first | {"merge": merge, "clients_per_round": 6}
        for first in (MOML, FEDAVG)
        for merge in ("median", "trimmed-mean", "krum")
    },
    "pfedme, median, server-mix": PFEDME | {"merge": "median", "server_mix": 0.5},
    "local-moml, clip": MOML | {"clip": 0.05},
    "fedavg, central privacy": FEDAVG | {"privacy": "central", "clip": 0.5},
    "local-moml, local privacy": MOML | {"privacy": "local", "clip": 0.5, "noise_multiplier": 0.1},
    "local-moml, carried, universal, clip": MOML
    | {"memory": "carry", "server_step": "universal", "clip": 1.0},
    "fedavg, stream": FEDAVG | {"order": "stream", "partition": "blocks"},
    "local-moml, stream": MOML | {"order": "stream", "memory": "carry"},
    "fedavg, shards": FEDAVG | {"shards": 2},
    **{
        f"{first['method']}, {partition}": first | {"partition": partition, "num_clients": 8}
        for first in (MOML, FEDAVG)
        for partition in ("iid", "dirichlet", "pathological")
    },
    **{
        f"{first['method']}, {model}": first | {"model": model}
        for first in (MOML, PER, PFEDME, FEDAVG)
        for model in ("cnn", "linear")
    },
    "local-moml, two layers": MOML | {"hidden": "12,9", "seed": 3},
    "fedavg, no adaptation": FEDAVG | {"adapt_steps": 0, "seed": 2},
    "molar": MOLAR,
    "molar, soft": MOLAR | {"thresholding": "soft", "intercept": False},
    "molar, equal weights": MOLAR | {"site_weights": "equal", "level": 0.9},
    "molar, logistic": MOLAR
    | {"dataset": "sparse-logistic", "family": "logistic", "test_fraction": 0.1},
    "molar, poisson": MOLAR | {"dataset": "sparse-poisson", "family": "poisson"},
    "molar-bandit": ARMS | {"first_batch": 4},
    "molar-bandit, one parameter": ARMS | {"bandit_model": "P", "history": "all"},
    "meta-ban": TURNS | {"dataset": "linear-groups"},
    "meta-ban, cosine": TURNS
    | {"dataset": "cosine-groups", "gamma": 0.1, "nu": 2.0, "alpha": 0.3, "user_steps": 1},
    "meta-ban, classes": TURNS
    | {"dataset": "digits,permuted-digits", "num_clients": 20, "num_rounds": 12},
}

SEQUENTIAL = ("local-moml, exact", "pfedme", "fedavg, linear")  # one client after the other, too


def experiment(name, **more):
    """Returns the experiment of a case; when they were recorded, there was but one protocol."""
    settings = SETTINGS[name] | more
    unread = {"molar", "molar-bandit", "meta-ban"}
    protocol = {} if settings["method"] in unread else {"protocol": "few-shot"}
    return small(**protocol | settings)


def run(name, folder, **more):
    """Returns all that a run gives but its times."""
    engine = more.pop("engine", "vectorized")
    simulate(experiment(name, **more), folder, engine=engine)
    return kept(folder)


def kept(folder):
    """Returns what a run's folder holds: results, rows, the last model and state, the memories."""
    record = Run.open(folder)
    checkpoint = record.load_checkpoint()
    memories = tensors_from_bytes(checkpoint.memories) if checkpoint.memories else {}
    return {
        "results": record.results,
        "rows": record.rows(),
        "model": checkpoint.model,
        "state": {name: leaf.numpy() for name, leaf in checkpoint.state.items()},  # may get more
        "memories": dict(sorted(memories.items())),
    }


def elsewhere(name, folder):
    """Returns how results, and the last model, of a run by other means differ from the recorded."""
    recorded = read()["cases"][f"run: {name}"]
    told = {key: recorded[key] for key in ("results", "model")}
    return list(differences(told, plain(kept(folder)), tolerance=(1e-6, 1e-9), where=name))


def resumed(folder):
    """A run that is stopped after two rounds and goes on gives what one that was not gives."""
    name = "local-moml, carried, exact"
    run(name, folder, num_rounds=2)
    return run(name, folder, resume=str(folder))


CASES = {
    **{name: lambda folder, name=name: run(name, folder) for name in SETTINGS},
    **{
        f"{name}; one by one": lambda folder, name=name: run(name, folder, engine="sequential")
        for name in SEQUENTIAL
    },
    "local-moml, carried, exact; resumed": resumed,
}
