"""FedAvg as a loop of plain PyTorch, and as ``engram.simulate`` runs it on the same rows."""

import copy

import numpy as np
import torch

import engram
from engram.data.readers.in_memory import hold

CLIENTS, ROWS, TESTS = 3, 12, 3
ROUNDS, EPOCHS, ETA = 2, 2, 0.3


def mean_of(states):
    """Parameters, and running statistics, of which the whole numbers are counts."""
    return {
        name: torch.stack([state[name] for state in states]).mean(0)
        for name, leaf in states[0].items()
        if leaf.is_floating_point()
    }


def called(net, inputs):
    return net(**inputs) if isinstance(inputs, dict) else net(inputs)


def looped(
    start,
    inputs,
    targets,
    loss,
    *,
    clip=0.0,
    optimizer=torch.optim.SGD,
    max_norm=0.0,
    rounds=ROUNDS,
    epochs=EPOCHS,
    eta=ETA,
):
    """Trains every client on all of its rows at once, and takes the mean of what they end with.

    Args:
        start: A module.
        inputs: Rows (clients, rows, ...), or a dictionary of them.
        targets: Theirs.
        loss: ``(outputs, targets) -> mean loss``.
        clip: Largest norm of the change of a client's parameters.
        optimizer: Makes an optimizer.
        max_norm: Largest norm of a gradient.
        rounds: Rounds.
        epochs: Steps of a client in a round.
        eta: Step size.
    """
    common = copy.deepcopy(start)
    for _ in range(rounds):
        states = []
        for i in range(CLIENTS):
            net = copy.deepcopy(common).train()
            own = {k: v[i] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[i]
            steps = optimizer(net.parameters(), lr=eta)
            for _ in range(epochs):
                steps.zero_grad()
                loss(called(net, own), targets[i]).backward()
                if max_norm:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)
                steps.step()
            with torch.no_grad():
                if clip:
                    pairs = list(zip(net.parameters(), common.parameters(), strict=True))
                    size = float(torch.cat([(p - old).flatten() for p, old in pairs]).norm())
                    for p, old in pairs:
                        p.copy_(old + (p - old) * min(1.0, clip / size))
            states.append(net.state_dict())
        common.load_state_dict(mean_of(states), strict=False)
    return common


def arrays(inputs, targets):
    """Keeps rows as a data set, of which clients train on all, and are scored on the first."""
    named = {f".{k}": v for k, v in inputs.items()} if isinstance(inputs, dict) else {"": inputs}
    found = {}
    for split, count in (("train", ROWS), ("test", TESTS)):
        for name, x in (*((f"x_{split}{k}", v) for k, v in named.items()), (f"y_{split}", targets)):
            found[name] = np.concatenate(np.asarray(x)[:, :count])
        found[f"task_{split}"] = np.repeat(np.arange(CLIENTS), count)
    return hold(found)


def simulated(make, inputs, targets, folder, **settings):
    """Runs FedAvg, or another method, in as many steps of as many rows."""
    given = {"method": "fedavg", "partition": "natural", "num_clients": CLIENTS}
    given |= {"clients_per_round": CLIENTS, "num_rounds": ROUNDS, "local_epochs": EPOCHS}
    given |= {"batch_size": ROWS, "eta": ETA, "validation_fraction": 0.0, "eval_every": ROUNDS}
    given |= {"adapt_steps": 1, "adapt_shots": 2, "progress": False}
    given |= {"dataset": arrays(inputs, targets), "model": make, "out": folder}
    return engram.simulate(**given | settings)


def gap(run, net):
    """The largest difference between a run's parameters and statistics, and a module's."""
    state = net.state_dict()
    return max(float((leaf - state[name]).abs().max()) for name, leaf in run.model.items())
