"""A method of FL-bench, in a process that does a round for each line that it reads.

``python -m benchmarks.fl_bench_peer CASE FOLDER METHOD CHECKOUT WORKERS`` is started by
``benchmarks.contenders``, in an environment that FL-bench can be imported in, and answers as
``benchmarks.module_peers`` does. It trains in its own process, or in so many workers of Ray with
one thread each. The servers' and the clients' code is FL-bench's own; replaced are its network and
the order of a client's rows. Nothing is written to the checkout.
"""

import json
import os
import pickle
import sys
from argparse import Namespace
from importlib import import_module as of
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from benchmarks.module_peers import Task, Turns, read_task
from benchmarks.networks import STEP_SIZE
from benchmarks.pfllib_pairs import PAIRS
from engram.networks.vision import torchvision

_DATASET: Final = "synthetic"  # the one that is read from arrays as they are
_ROUNDS: Final = 1000  # at most: it draws the clients of all rounds first
_PFEDME: Final = PAIRS["pfedme"].theirs
_METHODS: Final[dict[str, dict[str, Any]]] = {
    "fedavg": {},
    "perfedavg": {"version": "fo", "beta": STEP_SIZE},
    "pfedme": {
        "pers_lr": _PFEDME["p_learning_rate"],
        "lamda": _PFEDME["lamda"],
        "k": _PFEDME["K"],
        "beta": _PFEDME["beta"],
        "mu": 0.0,
    },
    "ditto": {"pers_epoch": 1, "lamda": PAIRS["ditto"].ours["lambda_"]},
}
"""Settings of each method, by FL-bench's name."""


def write_dataset(task: Task, folder: Path) -> None:
    """Writes the clients' rows as FL-bench reads them."""
    x, y = map(torch.cat, zip(*task.rows, strict=True))
    numbers = np.arange(len(y)).reshape(len(task.rows), -1).tolist()
    everyone = [*range(len(numbers))]
    names = {"train": everyone, "val": [], "test": everyone, "total": len(everyone)}
    each = [{"train": own, "val": [], "test": []} for own in numbers]
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "data.npy", x.numpy())
    np.save(folder / "targets.npy", y.numpy())
    (folder / "args.json").write_text(json.dumps({"split": "sample"}))
    (folder / "partition.pkl").write_bytes(
        pickle.dumps({"separation": names, "data_indices": each})
    )


def settings(task: Task, method: str, workers: int) -> dict[str, Any]:
    """Returns FL-bench's settings: steps of every round, and no evaluation."""
    never = {"interval": -1, "train": False, "val": False, "test": False}
    return {
        "method": method,
        "dataset": {"name": _DATASET},
        "model": {"name": "engram", "use_torchvision_pretrained_weights": False},
        "optimizer": {"lr": STEP_SIZE},
        "mode": "parallel" if workers else "serial",
        "parallel": {"ray_cluster_addr": "local", "num_workers": workers},
        "common": {
            "join_ratio": 1.0,
            "global_epoch": _ROUNDS,
            # Its Per-FedAvg takes two batches a step, and half as many steps an epoch.
            "local_epoch": 2 if method == "perfedavg" else 1,
            "batch_size": task.case.batch,
            "client_side_evaluation": False,
            "test": {"client": never, "server": never},
            "verbose_gap": _ROUNDS + 1,
            "use_cuda": False,
            "save_log": False,
            "save_learning_curve_plot": False,
            "save_metrics": False,
        },
        method: _METHODS[method],
    }


def make_server(task: Task, folder: Path, workers: int) -> Any:
    """Returns FL-bench's server of a task."""
    torchvision()  # which it imports
    constants: Any = of("src.utils.constants")
    constants.FLBENCH_ROOT = folder
    write_dataset(task, folder / "data" / _DATASET)
    now = Namespace(runtime=Namespace(output_dir=str(folder)))
    of("hydra.core.hydra_config").HydraConfig.get = lambda: now
    if workers:  # it demands a GPU by name, which none of them uses
        of("ray").init(
            address="local",
            num_cpus=workers,
            num_gpus=1,
            runtime_env={"worker_process_setup_hook": torchvision},
        )
    models = of("src.utils.models")

    def model(**_: object) -> Any:
        made = models.DecoupledModel()
        made.base, made.classifier = task.network(), nn.Identity()
        return made

    models.MODELS["engram"] = model
    method = task.method.replace("-", "")
    module = of(f"src.server.{method}")
    (name,) = (each for each in vars(module) if each.lower() == f"{method}server")
    server: Any = getattr(module, name)
    client: Any = server.client_cls

    class InOrder(client):  # type: ignore[misc]  # untyped
        def __init__(self, **commons: Any) -> None:
            super().__init__(**commons)
            size = self.args.common.batch_size
            self.trainloader = torch.utils.data.DataLoader(self.trainset, size)

    server.client_cls = InOrder
    config = of("omegaconf").DictConfig(settings(task, method, workers))
    defaults = getattr(server, "get_hyperparams", None)
    return server(of("src.utils.functional").parse_args(config, method, defaults))


def main(name: str, folder: Path, method: str, checkout: Path, workers: int) -> None:
    """Does a round whenever it is asked for one, until nobody is there to ask."""
    turns, task = Turns(folder / "after-FL-bench.pt"), read_task(name, folder, method)
    sys.path.insert(0, str(checkout))
    os.environ["PYTHONPATH"] = f"{checkout}:{Path.cwd()}"  # of Ray's workers
    try:
        server = make_server(task, folder / "FL-bench", workers)
    except ImportError as error:
        turns.say(f"missing {error}")
        return
    train = server.train_one_round

    def turn() -> None:
        train()
        turns.end_round(lambda: server.public_model_params)

    server.train_one_round = turn
    turns.begin()
    server.train()


if __name__ == "__main__":
    _, name_, folder_, method_, checkout_, workers_ = sys.argv
    main(name_, Path(folder_), method_, Path(checkout_), int(workers_))
