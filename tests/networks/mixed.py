"""The same images from three clients, of which all, some or none give grey levels: a plug-in."""

import numpy as np

import engram
from engram.settings.experiment import Experiment

CLIENTS = 3
SETTINGS = dict.fromkeys(("num_clients", "clients_per_round", "min_clients"), CLIENTS)
SETTINGS |= {"partition": "natural", "method": "fedavg", "batch_size": 8, "validation_fraction": 0}
SETTINGS |= {"num_rounds": 3, "eval_every": 3, "hidden": "8", "eta": 0.1, "timeout": 120.0}


def experiment(function):
    """A CNN on one of these data sets."""
    name = function.__name__.replace("_", "-")
    return Experiment(dataset=name, model="cnn", **SETTINGS)


def images(client):
    """Grey levels (24, 8, 8), and their classes."""
    rng = np.random.default_rng(client)
    y = np.arange(24) % 2
    x = rng.integers(0, 200, (24, 8, 8), dtype=np.uint8)
    x[y == 1, :4] += 55
    return x, y


def shares(client):
    x, y = images(client)
    return x.astype(np.float32) / np.float32(255), y


@engram.data
def all_grey(client):
    return images(client)


@engram.data
def some_grey(client):
    return shares(client) if client == 1 else images(client)


@engram.data
def none_grey(client):
    return shares(client)
