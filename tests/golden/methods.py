"""Every method that trains networks, on each engine, through the front door alone.

So that the numbers outlive any rebuild of the inside, a case is what a user types, and what it
finds is what a user can ask of a run: the numbers of its rounds and clients under their columns'
names, the common model, the model of every client, and what exported models predict.
"""

import numpy as np
import pandas as pd
import torch
from torch import nn

import engram
from engram.settings.errors import Refused

OTHERS = {"cox", "meta-ban", "molar", "molar-bandit"}  # they train no network by local steps
METHODS = [name for name in engram.methods() if name not in OTHERS]
ENGINES = ("vectorized", "sequential")
ROWS = (20, 26, 32, 38, 44, 24, 30)  # of each client
ROUNDS = 3
TOLERANCE = (1e-5, 1e-5)
EXPORTED = {"partial": ("c0", "c5", "c1"), "norms": ("c6",), "personal": ("c6",)}
DERIVED = ("-std", "-median", "-p10", "-p90", "-worst")  # from the clients' columns


class Convolution(nn.Module):
    """A small network of images, with batch norm.

    No bias stands before it: its gradient would be nothing but rounding.
    """

    def __init__(self):
        super().__init__()
        self.filters = nn.Conv2d(1, 3, 3, bias=False)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(27, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.filters(x))).flatten(1))


COMMON = {"num_rounds": ROUNDS, "clients_per_round": 3, "batch_size": 8, "weighting": "paper"}
KINDS = {
    # Client c1 is unseen, c5 never trains, c4 trains in each round, c3 in the first one alone.
    "partial": {
        "hidden": "6",
        "unseen_clients": 1,
        "seed": 4,
        "local_epochs": 2,
        "optimizer": "momentum",
        "optimizer_state": "kept",
        "eval_every": 1,
    },
    "norms": {
        "model": Convolution,
        "unseen_clients": 1,
        "local_epochs": 2,
        "optimizer": "momentum",
        "weight_decay": 0.01,
        "gradient_clip": 1.0,
        "schedule": "cosine",
    },
    # A split that is no method's own; the last layer is shared, as FedPAC demands.
    "personal": {
        "hidden": "6,4",
        "personal": "dense0.bias,dense1.weight",
        "local_steps": 4,
        "eval_every": 1,
    },
}
OWN = {
    "local-moml": {"memory": "carry", "hessian": "exact", "initial_batch_size": 3},
    "per-fedavg": {"hessian": "exact", "alpha": 0.1},
    "fedprox": {"mu": 0.5},
    "moon": {"mu": 2.0, "tau": 0.3},
    "fedavgm": {"beta": 0.5},
    "fedlc": {"tau": 0.5},
    "scaffold": {"server_eta": 0.5},
    "feddyn": {"alpha": 0.2},
    "fedadagrad": {"beta1": 0.5, "server_eta": 0.1},
    "fedyogi": {"beta1": 0.5, "server_eta": 0.1, "tau": 0.01},
    "fedadam": {"beta1": 0.5, "server_eta": 0.1, "tau": 0.01},
    "ditto": {"lambda_": 0.3},
    "apfl": {"adaptive": True},
    "mr-mtl": {"lambda_": 0.3},
    "pfedme": {"server_mix": 0.5, "inner_steps": 2},
    "fedrep": {"personal_share": 0.5},
    "fedalt": {"personal_share": 0.25},
    "fedproto": {"lambda_": 0.3},
    "fedpac": {"lambda_": 0.3, "head_share": 0.5},
    "feddbe": {"kappa": 0.5},
    "gpfl": {"lambda_": 0.3, "mu": 0.01},
    "knn-per": {"k": 4, "lambda_": 0.3},
    "fedala": {"layers": 2, "weight_share": 0.8},
    "ifca": {"clusters": 2, "initial_batch_size": 6},
    "fedem": {"components": 2},
    "pfedhn": {"embedding": 3, "layers": 1, "layer_width": 5},
    "fedrod": {"gamma": 0.5},
    "fedamp": {"lambda_": 0.3, "attraction": 0.4, "sigma": 2.0},
    "fedfomo": {"models": 2, "initial_batch_size": 6},
    "cfl": {"eps1": 100.0, "eps2": 0.01, "clusters": 3},
    "fedas": {"align_eta": 0.2, "align_share": 0.5},
    "floco": {"vertices": 3, "tau": 2, "rho": 0.5},
}
"""Settings of each method's own other than by default, beside personal patterns."""


def data(*, images):
    """Returns each client's rows: three classes, which stand elsewhere for each client."""
    rng = np.random.default_rng(0)
    filters = rng.normal(size=(1, 5, 5))
    found = {}
    for client, rows in enumerate(ROWS):
        y = rng.integers(0, 3, rows)
        x = rng.normal(size=(rows, 5))
        x[:, :3] += 1.5 * np.eye(3)[(y + client) % 3]
        x = (x[:, :, None] * filters).reshape(rows, 1, 5, 5) if images else x
        found[f"c{client}"] = (x.astype(np.float32), y)
    return found


def settings(method, kind):
    """Returns the settings of a case; those of the method itself are the defaults if partial."""
    return COMMON | KINDS[kind] | ({} if kind == "partial" else OWN.get(method, {}))


def run(method, kind, engine, folder):
    """Runs a method in one go; returns the run and the clients' rows."""
    rows = data(images=kind == "norms")
    return _run(rows, folder, method=method, engine=engine, **settings(method, kind)), rows


def resumed(method, kind, engine, folder):
    """Runs a method for a round, and resumes it; returns the run and the clients' rows."""
    rows = data(images=kind == "norms")
    given = settings(method, kind) | {"num_rounds": 1}
    _run(rows, folder, method=method, engine=engine, **given)
    return engram.simulate(rows, resume=folder, num_rounds=ROUNDS, progress=False), rows


def _run(rows, folder, **given):
    return engram.simulate(rows, out=folder, progress=False, **given)


def numbers(found, kind, folder):
    """Returns what is recorded of a run."""
    ran, rows = found
    return {
        "rounds": {
            name: _cells(column)
            for name, column in ran.metrics.items()
            if column.dtype.kind in "if" and not name.endswith(DERIVED)
        },
        "cohorts": ran.metrics["cohort"].tolist()[1:],
        "clients": {
            name: dict(zip(column.index, _cells(column), strict=True))
            for name, column in ran.clients.items()
        },
        "common": _summary(lambda: ran.model),
        "personal": {client: _summary(lambda c=client: ran.personal_model(c)) for client in rows},
        "predicted": {
            client: _of(_predicted(ran, client, rows[client][0], folder / client))
            for client in EXPORTED[kind]
        },
    }


def _cells(column):
    return [None if pd.isna(value) else _rounded(value) for value in column.tolist()]


def _summary(model):
    try:
        return {name: _of(leaf) for name, leaf in sorted(model().items())}
    except Refused:
        return "refused"


def _of(tensor):
    """Returns the norm, and a projection that no two entries have the same weight in."""
    entries = tensor.detach().double().numpy().ravel()
    weights = np.cos(np.arange(1, len(entries) + 1))
    return [_rounded(np.sqrt((entries**2).sum())), _rounded((entries * weights).sum())]


def _rounded(value):
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _predicted(ran, client, x, folder):
    return engram.load_model(ran.export(client, out=folder))(torch.from_numpy(x[:5]))


def case(method, kind, engine):
    """Returns a case: what is found in a folder of its own, or that the method refuses it."""

    def found(folder):
        try:
            ran = run(method, kind, engine, folder / "run")
        except Refused:
            return {"refused": True}
        return numbers(ran, kind, folder)

    return found


def name_of(method, kind, engine):
    """Returns the name of a case."""
    return f"method: {method}, {kind}; {engine}"


CASES = {
    name_of(method, kind, engine): case(method, kind, engine)
    for method in METHODS
    for kind in KINDS
    for engine in ENGINES
}
