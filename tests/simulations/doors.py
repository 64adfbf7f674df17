"""Every front door of the platform, by name, as a function of a seed and a folder."""

import io

import numpy as np
import pandas as pd
import torch
from torch import nn

import engram
from engram.home.predicting import predict
from tests.golden.estimators import CASES

QUICK = {"num_rounds": 2, "local_steps": 2, "batch_size": 8, "eval_every": 2, "progress": False}


class Net(nn.Module):
    """A network of a user's that draws its weights, also when it is called first, and masks."""

    def __init__(self):
        super().__init__()
        self.body, self.dropped, self.norm = nn.LazyLinear(6), nn.Dropout(0.3), nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 2)
        self.scale = nn.Parameter(torch.rand(6) + float(np.random.rand()))

    def forward(self, x):
        return self.head(self.norm(self.dropped(torch.tanh(self.body(x)))) * self.scale)


def jitter(row):
    return row + 0.3 * torch.randn(row.shape)


def clients(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 24, 5)).astype("float32")
    return {f"site {i}": (rows, (rows[:, i % 2] > 0).astype(int)) for i, rows in enumerate(x)}


def numbers(run):
    """Returns all numbers of a run."""
    rows = run.metrics.drop(columns=[c for c in run.metrics if c == "ms"])
    return {"rounds": rows, "clients": run.clients, **parameters(run.model)}


def parameters(found):
    return {name: leaf.numpy() for name, leaf in found.items()}


def simulated(seed, folder, **settings):
    usual = {"method": "ditto", "seed": seed, "out": folder / "run"}
    own = settings if "model" in settings else {"hidden": "6", **settings}
    return engram.simulate(clients(seed), **QUICK | usual | own)


def with_a_name(seed, folder):
    """Each call brings another network, loss, metric and step size under the names of others."""

    def net():
        return nn.Sequential(nn.Linear(5, 2 + seed % 4), nn.Tanh(), nn.Linear(2 + seed % 4, 2))

    def score(outputs, targets):
        return (outputs.argmax(1) == targets).float().mean() + seed

    def costs(outputs, targets):
        return (1 + seed) * nn.functional.cross_entropy(outputs, targets)

    def warm(number):
        return 1 / (number + seed)

    def signs(gradient):
        return gradient.sign() / (1 + seed)

    own = {"model": net, "loss": costs, "metrics": ["accuracy", score], "schedule": warm}
    return numbers(simulated(seed, folder, **own, optimizer=signs, method="fedavg"))


def compared(seed, folder):
    own = {"methods": ["fedavg"], "seeds": 1, "out": folder / "all", "seed": seed}
    table = engram.compare(clients(seed), **own, hidden="6", **QUICK).table
    return {"table": table.drop(columns=[c for c in table if "ms" in c.split("-")])}


def tuned(seed, folder):
    own = {"methods": ["fedavg"], "seeds": 1, "trials": 2, "out": folder / "tune", "seed": seed}
    found = engram.tune(clients(seed), **own, hidden="6", validation_fraction=0.3, **QUICK)
    return {"table": found.table("fedavg")}


def exported(seed, folder):
    """Adapts to a newcomer, exports, loads and predicts."""
    run = simulated(seed, folder)
    x, y = clients(seed + 1)["site 0"]
    np.savez(folder / "rows.npz", x=x, y=y)
    run.adapt(folder / "rows.npz", out=folder / "new")
    found = parameters(run.personal_model("site 1"))
    for number, place in enumerate([run.export("site 1", out=folder / "own"), folder / "new"]):
        predict(place, folder / "rows.npz", folder / f"{number}.csv")
        found |= {f"{number} {n}": x for n, x in engram.load_model(place).state_dict().items()}
        found |= {f"predicted {number}": pd.read_csv(folder / f"{number}.csv")}
    return found


def drawn(seed, folder):
    """A plot, in numbers: what a file of it shows."""
    file = io.BytesIO()
    simulated(seed, folder, method="fedavg").plot().savefig(file, format="rgba")
    return {"pictures": np.frombuffer(file.getvalue(), np.uint8)}


def of_family(method, **settings):
    def act(seed, folder):
        run = engram.simulate(
            method=method, seed=seed, out=folder / "run", progress=False, **settings
        )
        rows = run.metrics.select_dtypes("number")
        return {"rounds": rows.drop(columns=[c for c in rows if c == "ms"])}

    return act


def tables(seed, folder):
    rng = np.random.default_rng(seed)
    x, site = rng.normal(size=(120, 3)), np.repeat(range(4), 30)
    frame = pd.DataFrame(x, columns=["age", "dose", "weight"]).assign(site=site)
    frame.assign(y=x.sum(1) + rng.normal(size=120)).to_csv(folder / "rows.csv", index=False)
    own = {"dataset": f"csv:{folder / 'rows.csv'}", "task_column": "site", "target_column": "y"}
    return of_family("molar", num_clients=4, **own)(seed, folder)


def of_library(name):
    return lambda seed, folder: CASES[name]()


LIBRARY = ("molar, hard, c = 0.5", "molar, classes", "molar, counts", "lasso")
LIBRARY += ("learner, universal", "policy, linucb, one", "policy, neural ucb, one")


DOORS = {
    "simulate": lambda seed, folder: numbers(simulated(seed, folder, model=Net)),
    "sequential": lambda seed, folder: numbers(simulated(seed, folder, engine="sequential")),
    "augment": lambda seed, folder: numbers(simulated(seed, folder, augment=jitter)),
    "names": with_a_name,
    "compare": compared,
    "tune": tuned,
    "export": exported,
    "plot": drawn,
    "molar": tables,
    "meta-ban": of_family("meta-ban", dataset="linear-groups", num_clients=3, num_rounds=2),
    "molar-bandit": of_family("molar-bandit", dataset="sparse-linear", num_clients=3, num_rounds=2),
    **{name: of_library(name) for name in LIBRARY},
}
