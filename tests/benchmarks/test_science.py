"""The benchmarks of MOLAR and of online learners run, and what they print is numbers."""

import math

import numpy as np

from benchmarks import molar, online
from engram.online import loss_streams


def test_molars_times_and_memory_are_numbers():
    server = molar.time_server(tasks=20, dim=30)
    assert server["seconds"] > 0
    assert math.isfinite(server["mib"])
    site = molar.time_site(200, 5, turns=1)
    assert site.keys() == {"site", "lstsq", "qr"}
    assert all(ms > 0 for ms in site.values())


def test_times_of_online_learners_are_numbers():
    gradients = loss_streams.directions(np.random.default_rng(0), 20, 10)
    found = online.time_rounds(10, gradients, turns=1)
    assert {"ensemble", "OGD", "MetaGrad"} <= found.keys()
    assert all(micros > 0 for micros in found.values())
