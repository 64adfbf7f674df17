"""Contract of users' own things: equal to a plain PyTorch loop, in turn and all at once."""

import pytest

from simulations.engine import simulate
from tests.brought.cases import CASES, register
from tests.brought.loop import check, experiment


@pytest.fixture(autouse=True)
def _registered(plug_ins):
    register()


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", CASES)
def test_as_in_a_plain_loop(name, engine, tmp_path):
    e = experiment(name, tmp_path)
    simulate(e, tmp_path / "run", engine=engine)
    check(name, e, tmp_path / "run")
