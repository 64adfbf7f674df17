"""Contract of users' own things: equal to a plain PyTorch loop, in turn and all at once."""

from itertools import product

import pytest

from engram.simulations.engine import simulate
from tests.brought.cases import CASES, register
from tests.brought.loop import check, experiment
from tests.samples import sampled


@pytest.fixture(autouse=True)
def _registered(plug_ins):
    register()


ENGINES = ("sequential", "vectorized")
TURNS = [(name, ENGINES[i % 2]) for i, name in enumerate(CASES)]


@pytest.mark.parametrize(("name", "engine"), sampled(product(CASES, ENGINES), TURNS))
def test_as_in_a_plain_loop(name, engine, tmp_path):
    e = experiment(name, tmp_path)
    simulate(e, tmp_path / "run", engine=engine)
    check(name, e, tmp_path / "run")
