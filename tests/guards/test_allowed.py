"""Protections that go together: every combination is refused or allowed as it was at first."""

from itertools import product
from pathlib import Path

import pytest

from engram.settings.errors import Refused
from engram.settings.experiment import Experiment

# The first of each is the default, which the table leaves out.
CHOICES = {
    "merge": ("mean", "median", "multi-krum"),
    "privacy": ("none", "local", "central", "example"),
    "aggregation": ("plain", "secure"),
    "compress": ("none", "8-bit", "top-k"),
    "clip_quantile": (0.0, 0.5),
    "buffer_size": (0, 3),
    "server_step": ("replace", "universal"),
    "sampling": ("fixed", "poisson"),
}
ALLOWED = Path(__file__).with_name("allowed.txt").read_text().splitlines()
ROUNDS = {"num_clients": 20, "clients_per_round": 10, "min_clients": 1, "clip": 1.0}


def line(method, chosen):
    named = zip(CHOICES.items(), chosen, strict=True)
    return " ".join(
        [method, *(f"{key}={value}" for (key, all_), value in named if value != all_[0])]
    )


# One whose server takes the mean alone; has a step of its own; sees every update; and one whose
# clients look at rows in other ways than by a gradient a step.
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedpac", "per-fedavg"])
def test_what_went_together_goes_together_and_nothing_else(method):
    found = []
    for chosen in product(*CHOICES.values()):
        try:
            Experiment(method=method, **ROUNDS, **dict(zip(CHOICES, chosen, strict=True)))
        except Refused:
            continue
        found.append(line(method, chosen))
    assert found == [row for row in ALLOWED if row.split()[0] == method]
    assert len(found) > 5
