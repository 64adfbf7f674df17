"""FedAvg in plain torch: each client's steps with all of its rows, and the mean by rows."""

import copy

import numpy as np
import torch

import engram
from engram.data.arrays import held_out
from engram.settings.experiment import Experiment
from engram.settings.fields import key_of
from tests.brought.cases import CASES, NAMES, ROWS, TESTS, starts

ROUNDS, EPOCHS, ETA = 2, 2, 0.3
SETTINGS = {
    "method": "fedavg",
    "partition": "natural",
    "num_clients": len(ROWS),
    "clients_per_round": len(ROWS),
    "local_epochs": EPOCHS,
    "batch_size": 16,  # above all clients' rows
    "num_rounds": ROUNDS,
    "eval_every": ROUNDS,
    "eta": ETA,
    "validation_fraction": 0.0,
    "test_fraction": 0.3,
    "adapt_steps": 0,
}


def cut(client, rows):
    """The training rows and the test rows of a client."""
    return rows[: ROWS[client]], rows[ROWS[client] :]


def arrays_of(case):
    """The rows of all clients, by the names of an npz file."""
    rows = case.arrays or case.rows
    found = {}
    for name, of in rows.items():
        leaf, _, rest = name.partition(".")
        parts = [cut(client, of(client)) for client in range(len(ROWS))]
        for part, some in zip(("train", "test"), zip(*parts, strict=True), strict=True):
            found[f"{leaf}_{part}{'.' + rest if rest else ''}"] = np.concatenate(some)
    clients = np.arange(len(ROWS))
    found |= {"task_train": np.repeat(clients, ROWS), "task_test": np.repeat(clients, TESTS)}
    return found | ({"task_names": NAMES} if case is CASES["named clients"] else {})


def tensors(rows, client, kept=slice(None)):
    """The inputs, as arguments of the network, and the targets of some rows of a client."""
    found = [torch.as_tensor(of(client)[kept]) for of in rows.values()]
    return found[:-1], found[-1]


def fedavg(case, parts):
    """The common network after training on ``parts``, each client's inputs and targets."""
    common = starts(case.make)()
    for _ in range(ROUNDS):
        ends = []
        for inputs, targets in parts:
            net = copy.deepcopy(common)
            free = [p for p in net.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(free, case.settings.get("eta", ETA))
            for _ in range(EPOCHS):
                optimizer.zero_grad()
                case.loss(net(*inputs), targets).backward()
                optimizer.step()
            ends.append(dict(net.named_parameters()))
        shares = torch.tensor([len(targets) for _, targets in parts]) / sum(
            len(targets) for _, targets in parts
        )
        with torch.no_grad():
            for name, leaf in common.named_parameters():
                leaf.copy_(sum(share * end[name] for share, end in zip(shares, ends, strict=True)))
    return common


def experiment(name, folder):
    """The run of a case, on rows in a file unless the case has a data set of its own."""
    given = {"model": name.replace(" ", "-").replace(",", ""), **CASES[name].settings}
    if "dataset" not in given:
        np.savez(folder / f"{given['model']}.npz", **arrays_of(CASES[name]))
        given["dataset"] = f"npz:{folder / given['model']}.npz"
    settings = {key_of(key): value for key, value in (SETTINGS | given).items()}
    return Experiment.from_config(settings)


def expected(name, experiment):
    """The common network of a case by the plain loop, and each client's test rows."""
    case = CASES[name]
    rows = [(np.arange(ROWS[c]), ROWS[c] + np.arange(TESTS)) for c in range(len(ROWS))]
    if not experiment.dataset.startswith("npz:"):
        rows = [drawn_for_tests(case, c) for c in range(len(ROWS))]
    parts = [tensors(case.rows, c, train) for c, (train, _) in enumerate(rows)]
    tests = [tensors(case.rows, c, test) for c, (_, test) in enumerate(rows)]
    if experiment.standardize == "federation":
        parts, tests = standardized(parts, tests)
    return fedavg(case, parts), tests


def drawn_for_tests(case, client):
    """The training rows and the test rows of a client whose rows are read by themselves."""
    y = case.rows["y"](client)
    held = held_out(y, np.zeros(len(y), int), SETTINGS["test_fraction"], 0, [client])
    return np.flatnonzero(~held), np.flatnonzero(held)


def standardized(parts, tests):
    """The rows less their mean, by their deviation, of all clients' training rows."""
    x = torch.cat([inputs[0] for inputs, _ in parts]).double()
    mean, deviation = x.mean(0), x.std(0, correction=0)
    return (
        [([((inputs[0] - mean) / deviation).float()], y) for inputs, y in some]
        for some in (parts, tests)
    )


def check(name, experiment, folder):
    """Compares a run's common network, and its scores, with those of the plain loop."""
    run = engram.load_run(folder)
    network, tests = expected(name, experiment)
    wanted = {n: leaf for n, leaf in network.named_parameters() if leaf.requires_grad}
    assert set(run.model) >= set(wanted)
    for key, leaf in wanted.items():
        torch.testing.assert_close(run.model[key], leaf.detach(), rtol=1e-5, atol=1e-5, msg=key)
    starts(CASES[name].make)().load_state_dict(run.model, strict=False)
    with torch.no_grad():
        losses = [float(CASES[name].loss(network(*x), y)) for x, y in tests]
    np.testing.assert_allclose(run.clients["loss-common"], losses, rtol=1e-4, atol=1e-5)
