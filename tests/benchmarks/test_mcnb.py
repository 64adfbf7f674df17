"""The race with Meta-Ban's authors' code, in whose place is a policy that always plays arm 3."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import mcnb
from engram.bandits.studies.environments import EnvironmentSpec, draw_environment

_CODE = """
calls = []

class MCNB:
    def __init__(self, dim, n, n_arm, gamma, lr, nu):
        calls[:] = [("made", dim, n, n_arm, gamma, lr, nu)]
        self.users, self.lr = range(n), lr

    def train_meta(self, g, t, train_limit, meta_lr, y=1):
        calls.append(("meta", t, len(g), train_limit, meta_lr, y))

    def select(self, u, context, t):
        self.train_meta([u], t, 100, 1e-2, 0)
        return 3, {u}, None

    def update(self, u, context, reward, g):
        calls.append(("row", u, context.shape, reward))

    def train(self, u, t):
        calls.append(("own", u, t))
"""
LINEAR = EnvironmentSpec("linear-groups", (), ("user", "item", "rating"), "data")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "mcnb.py").write_text(_CODE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("mcnb", None)


def calls():
    return sys.modules["mcnb"].calls


def test_their_policy_plays_as_their_script_has_it(checkout):
    drawn = draw_environment(LINEAR, 1101, 0)
    found = mcnb.authors_regrets(checkout, drawn, 0)
    offers = [drawn.round(t) for t in range(1101)]
    np.testing.assert_allclose(found, np.cumsum([o.means.max() - o.means[3] for o in offers]))
    made, *rest = calls()
    assert made == ("made", drawn.dim, 30, 10, 0.4, 0.001, 1e-4)
    rows = [call for call in rest if call[0] == "row"]
    assert rows == [("row", o.user, (drawn.dim,), float(o.rewards[3])) for o in offers]
    trained = [t for _, _, t in (call for call in rest if call[0] == "own")]
    assert trained == [*range(0, 1000, 10), 1000, 1100]
    common = [call[1:] for call in rest if call[0] == "meta" and call[-1] == 1]
    assert common == [(t, 30, 1000, 0.001, 1) for t in trained]
    assert sum(call[0] == "meta" and call[-1] == 0 for call in rest) == 1101


def test_differences_to_the_authors_code():
    def runs(name, *errors):
        rounds = [1, 2, 4, 10]
        row = {"method": name, "setting": {}, "ms": 1.0, "rounds": rounds}
        return [{**row, "seed": i, "errors": [0.0, 0.0, 1.0, e]} for i, e in enumerate(errors)]

    theirs, ours = mcnb.compared([*runs("authors", 5.0, 9.0), *runs("ours", 6.0, 11.0)])
    assert theirs["over"] is None
    assert ours["rounds"] == [1, 2, 4, 10]
    mean, low, high = ours["over"][-1]
    # Gaps of 1 and 2: their standard error is 1/2, and the t quantile of one degree 12.706.
    assert (mean, high - mean, mean - low) == pytest.approx((1.5, 12.706 / 2, 12.706 / 2), 1e-4)
    (alone,) = mcnb.compared(runs("ours", 6.0))
    assert alone["over"] is None


def test_it_prints_a_table(checkout):
    app = mcnb.typer.Typer()
    app.command()(mcnb.main)
    size = ["--world", "linear-groups", "--rounds", "12", "--seeds", "2"]
    first = CliRunner().invoke(app, ["--mcnb", str(checkout), *size])
    assert first.exit_code == 0, first.output
    names = ["authors", *mcnb.OURS]
    assert [line.split()[0] for line in first.output.splitlines() if line.split()][2:] == names
