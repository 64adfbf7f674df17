"""A method of PFLlib, in a process that does a round for each line that it reads.

``python -m benchmarks.pfllib_peer CHECKOUT FOLDER`` is started by ``benchmarks.accuracy`` and
``benchmarks.contenders``, in an environment that PFLlib can be imported in. The folder holds
``task.json``, the initial weights and the clients' rows; PFLlib runs in a folder beside them, so
that nothing is written to the checkout. It answers as ``benchmarks.module_peers`` does, and leaves
its models in the folder after the round that the task names.

The server's and the clients' code is PFLlib's own. Three things are replaced: its evaluations,
which are where a round ends here; the network, but for the task ``cnn``, since PFLlib's MLP applies
a log-softmax to the features where it parts the network into a base and a head; and, where the task
asks for a number of rows or for their order, the loader that gives a client its batches.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.module_peers import Turns
from benchmarks.networks import WORKS

DATASET: Final = "engram"
DONE: Final = "models.pt"

_SETTINGS: Final = {  # what PFLlib's command line has by default, but for the time's threshold
    "device": "cpu",
    "dataset": DATASET,
    "goal": "accuracy",
    "save_folder_name": "items",
    "join_ratio": 1.0,
    "random_join_ratio": False,
    "client_drop_rate": 0.0,
    "few_shot": 0,
    "train_slow_rate": 0.0,
    "send_slow_rate": 0.0,
    "time_select": False,
    "time_threthold": float("inf"),
    "auto_break": False,
    "top_cnt": 100,
    "eval_gap": 1,
    "dlg_eval": False,
    "dlg_gap": 100,
    "batch_num_per_client": 2,
    "num_new_clients": 0,
    "fine_tuning_epoch_new": 0,
    "learning_rate_decay": False,
    "learning_rate_decay_gamma": 0.99,
}


class Mlp(nn.Module):
    """One hidden layer; PFLlib takes ``fc`` for the head."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits."""
        found: Tensor = self.fc(torch.relu(self.fc1(x.flatten(1))))
        return found


def network(task: dict[str, Any], start: list[Tensor]) -> Any:
    """Returns a task's network with given weights, in their order, as PFLlib's main would."""
    made: Any
    if task["network"] in WORKS:
        made = WORKS[task["network"]].make()
    elif task["network"] == "cnn":
        models = import_module("flcore.trainmodel.models")
        made = models.FedAvgCNN(in_features=1, num_classes=task["classes"], dim=1024)
    else:
        made = Mlp(start[0].shape[1], start[0].shape[0], task["classes"])
    with torch.no_grad():
        for leaf, value in zip(made.parameters(), start, strict=True):
            leaf.copy_(value)
    if task["split"]:
        head, made.fc = made.fc, nn.Identity()
        made = import_module("flcore.trainmodel.models").BaseHeadSplit(made, head)
    return made


class Rounds:
    """Stand-in for PFLlib's evaluations, with which each of its rounds begins."""

    def __init__(self, server: Any, turns: Turns, left: int) -> None:
        self._server, self._turns, self._left = server, turns, left
        self._seen = -1
        self._near: dict[int, list[Tensor]] = {}  # pFedMe's personal models
        for client in server.clients:
            if hasattr(client, "personalized_params"):
                self._watch(client)

    def __call__(self) -> None:
        """Ends a round; after the one that the task names, leaves the models."""
        done = len(self._server.Budget)
        if done == self._seen:  # some methods evaluate two models
            return
        self._seen = done
        if done == 0:
            self._turns.begin()
            return
        self._turns.end_round(self._models if done == self._left else None)

    def _watch(self, client: Any) -> None:
        """Keeps theta, which PFLlib overwrites by w at the end of a client's training."""
        before = client.update_parameters

        def update(model: nn.Module, new: list[Tensor]) -> None:
            self._near[client.id] = [leaf.detach().clone() for leaf in client.personalized_params]
            before(model, new)

        client.update_parameters = update

    def _models(self) -> dict[str, Any]:
        """Returns the common model and every client's own, as their parameters in order."""
        clients = [getattr(c, "model_per", c.model).parameters() for c in self._server.clients]
        personal = [self._near.get(i, [*leaves]) for i, leaves in enumerate(clients)]
        for client, leaves in zip(self._server.clients, personal, strict=True):
            if hasattr(client, "client_mean"):  # what FedDBE adds to the head's input
                leaves[-1] = leaves[-1] + leaves[-2] @ client.client_mean
            if hasattr(client, "opt_head"):  # FedRoD's own head, whose outputs are added
                own = client.head.parameters()
                leaves[-2:] = [a + b for a, b in zip(leaves[-2:], own, strict=True)]
        common = [*self._server.clients[0].model.parameters()]
        return {
            "common": [leaf.detach() for leaf in common],
            "personal": [[leaf.detach() for leaf in own] for own in personal],
            "gates": [gate_of(c) for c in self._server.clients if hasattr(c, "CoV")],
        }


def gate_of(client: Any) -> Tensor:
    """Gate of a client of GPFL, by which its head takes representations."""
    valve, given = client.CoV, client.personalized_conditional_input
    both = 1 + valve.Conditional_gamma(given), valve.Conditional_beta(given)
    return torch.stack(both).detach()


def drawing(client: Any, rows: int | None) -> Callable[..., Any]:
    """Returns a client's loader of batches of so many rows in all, drawn with replacement.

    With None they are the client's rows in their order. FedFomo's comes with one of rows that are
    set apart, which stays as it is.
    """
    load = client.load_train_data

    def loader(batch_size: int | None = None) -> Any:
        found = load(batch_size)
        train, *apart = found if isinstance(found, tuple) else (found,)
        drawn: Any = torch.utils.data.SequentialSampler(train.dataset)
        if rows is not None:
            drawn = torch.utils.data.RandomSampler(
                train.dataset, replacement=True, num_samples=rows
            )
        made = torch.utils.data.DataLoader(train.dataset, train.batch_size, sampler=drawn)
        return (made, *apart) if apart else made

    return loader


def main(checkout: Path, folder: Path) -> None:
    """Does a round whenever it is asked for one, until nobody is there to ask."""
    turns = Turns(folder / DONE)
    task = json.loads((folder / "task.json").read_text())
    sys.path.insert(0, str(checkout / "system"))
    (folder / "system").mkdir(exist_ok=True)
    os.chdir(folder / "system")
    module, _, name = task["server"].partition(".")
    try:
        made = getattr(import_module(f"flcore.servers.{module}"), name)
        args = Namespace(**_SETTINGS, **task["args"])
        args.algorithm, args.num_classes = name, task["classes"]
        args.model = network(task, torch.load(folder / "start.pt"))
        server = made(args, 0)
    except ImportError as error:
        turns.say(f"missing {error}")
        return
    for client in server.clients:
        if task["rows"] != 0:
            client.load_train_data = drawing(client, task["rows"])
    torch.manual_seed(task["seed"])
    rounds = Rounds(server, turns, task["left"])
    server.evaluate = server.evaluate_personalized = server.evaluate_one_step = rounds
    server.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
