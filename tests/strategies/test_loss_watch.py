"""The warning before a run diverges: when it comes, what it names, and that it comes once."""

import pytest

from engram.runs.record import RunRecord
from engram.settings.families import METHODS, family
from engram.simulations.engine import simulate
from engram.strategies.rounds import LossWatch
from tests.support import small


def watch(losses):
    seen = LossWatch("fedavg.eta")
    for number, loss in enumerate(losses, start=1):
        seen.see(number, loss)


def test_it_comes_once_and_says_since_when_and_what_to_do(lines):
    watch([2.0, 1.0, 0.6, 0.3, 0.1, 0.1, 0.1, *[60.0] * 9])
    # Means of five rounds: least in round 7, (0.6 + 0.3 + 3 * 0.1) / 5; then one of five is 60.
    (line,) = lines
    assert line == (
        "round 8: the median training loss is 12.1, and was 0.24 in round 7 (means of 5 rounds): "
        "the run may diverge; if inputs and targets are of usual size, lower fedavg.eta"
    )


@pytest.mark.parametrize(
    "losses",
    [
        [2.3, 1.0, 0.5, 0.2, 0.1, 0.05, 0.01, 0.001, 0.0001, 0.002, 0.003],  # small ones differ
        [2.3, 2.0, 0.2, 2.2, 0.3, 2.1, 0.2, 1.9],  # cohorts differ
        [0.2, 0.5, 1.0, 1.5],  # less than ten times
        [],
    ],
)
def test_it_does_not_come_for_nothing(lines, losses):
    watch(losses)
    assert lines == []


def test_a_run_shows_it_every_loss_and_names_its_step_sizes(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(LossWatch, "see", lambda self, *found: seen.append((self._lower, *found)))
    simulate(small(method="local-moml"), tmp_path / "run")
    rows = RunRecord.open(tmp_path / "run").rows()
    lower = "local-moml.alpha or local-moml.eta"
    told = "train-loss-median"  # which no single client owns
    assert seen == [(lower, r["round"], r[told]) for r in rows if told in r]
    assert len(seen) == 4


def test_every_method_says_what_its_step_sizes_are():
    for name in family("local"):
        assert f"{name}.eta" in METHODS[name].step_sizes()
    assert METHODS["fedadam"].step_sizes() == ["fedadam.eta", "fedadam.server-eta"]
    assert METHODS["apfl"].step_sizes() == ["apfl.eta"]  # its alpha is none
