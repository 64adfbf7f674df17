"""Functions of users in place of names: losses, metrics, optimizers and schedules."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import engram
from engram.runs.run import Run
from engram.scoring.tasks import LOSSES
from engram.settings.errors import Refused
from tests.samples import entry

pytestmark = pytest.mark.usefixtures("plug_ins")

LINEAR = nn.Linear(3, 1)
NAMES, ROWS = ("park", "lake", "hill"), (20, 24, 32)


def hospitals():
    rng = np.random.default_rng(0)
    rows = ((name, rng.normal(size=(count, 3))) for name, count in zip(NAMES, ROWS, strict=True))
    return {name: (x.astype("float32"), x.sum(1).astype("float32")) for name, x in rows}


def run(**settings):
    usual = {"model": LINEAR, "method": "fedavg", "num_rounds": 2, "eta": 0.1}
    return engram.simulate(hospitals(), progress=False, **usual | settings)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def squares(outputs, targets):
    """Mean of squares."""
    return ((outputs - targets) ** 2).mean()


def widest(outputs, targets):
    return (outputs - targets).abs().max()


@pytest.mark.parametrize("given", [squares, [squares], (squares, "rmse", widest)])
def test_metrics_may_be_functions_also_among_names(given):
    found = run(metrics=given)
    names = ["squares", "rmse", "widest"] if isinstance(given, tuple) else ["squares"]
    assert found.experiment.metrics == ",".join(names)
    if len(names) > 1:  # they see what the built-in ones see, though outputs are (n, 1)
        squared = found.clients["rmse"] ** 2
        assert found.clients["squares"].to_numpy() == pytest.approx(squared.to_numpy(), rel=1e-5)


def test_a_metric_that_has_been_registered_keeps_its_range():
    engram.metric(low=0, better="lower")(squares)
    (kept, _) = Run.open(run(metrics=[squares]).folder).metrics
    assert (kept.name, kept.better, kept.meaning) == ("squares", "lower", "Mean of squares")


def test_what_is_impossible_is_refused_in_one_line(tmp_path):
    for settings, words in [
        ({"metrics": lambda o, y: o - y}, "name of a metric must be small letters"),
        ({"metrics": [squares, 3]}, "metrics must be one of .* got '3'"),
        ({"schedule": lambda number: -1.0}, "schedule <lambda> must be a finite number, 0 or more"),
        ({"schedule": lambda number: None}, "schedule <lambda> must be a number for each round"),
        ({"schedule": torch.optim.lr_scheduler.StepLR}, "schedule must be a function, .*StepLR'$"),
        ({"optimizer": torch.optim.SGD(LINEAR.parameters())}, "optimizer must be sgd, .*sgd.SGD'$"),
        ({"schedule": lambda one, two: one}, "schedule <lambda> must be a number.*TypeError"),
        ({"optimizer": torch.optim.SGD}, "optimizer must be sgd, .*eta.*got 'torch.optim.sgd.SGD'"),
        ({"optimizer": partial(torch.optim.AdamW, lr=1e-3)}, "optimizer must be sgd, .*AdamW'$"),
        ({"optimizer": lambda g, m: g}, "optimizer <lambda> must take a gradient and its moments"),
        ({"optimizer": lambda g, *, lr: g}, "arguments of <lambda> must be a gradient, moments"),
        ({"loss": lambda o, y: "none"}, "loss <lambda> must take outputs of shape"),
        ({"loss": lambda o, y: (o > y).float()}, "loss <lambda> must have a gradient by the outp"),
        ({"loss": lambda o, y: o.mean() * torch.rand(())}, "loss <lambda> must be the same for"),
        ({"loss": nn.PReLU()}, "must take|must have no parameters of its own"),
        ({"optimizer": "adm"}, "optimizer must be one of .* a function, in Python.*got 'adm'"),
    ]:
        with entry(settings):
            with pytest.raises(Refused, match=words) as refused:
                run(**settings)
            assert "\n" not in str(refused.value)
            assert not (tmp_path / "runs").exists()


def test_a_metric_that_is_not_one_number_is_refused_by_its_name():
    def gaps(outputs, targets):
        return outputs - targets

    with pytest.raises(Refused, match=r"^metric gaps must be one number .*, got \(\d+,\)$"):
        run(metrics=gaps)
    engram.metric(by_row=True)(widest)
    with pytest.raises(Refused, match=r"^metric widest must be one number for each of \d+ rows"):
        run(metrics="widest")
    with pytest.raises(Refused, match=r"^metric seen must be the same .*got \[1.0, 2.0\]$"):
        run(metrics=Seen().seen)
    with pytest.raises(Refused, match=r"^metric broken must take .*: ZeroDivisionError"):
        run(metrics=broken)

    def rmse(outputs, targets):
        return (outputs - targets).mean()

    with pytest.raises(Refused, match="name of a metric must be one that no built-in metric has"):
        run(metrics=rmse)


class Seen:
    """A metric that counts its calls."""

    calls = 0

    def seen(self, outputs, targets):
        self.calls += 1
        return float(self.calls)


def test_who_tunes_by_an_error_says_that_less_is_better(tmp_path):
    how = {"methods": "fedavg", "trials": 1, "seeds": 1, "num_rounds": 1, "progress": False}
    how |= {"search": "eta=0.1..0.2:log", "validation_fraction": 0.4, "out": tmp_path / "t"}

    def gap(outputs, targets):
        return (outputs - targets).abs().mean()

    with pytest.raises(Refused, match=r'^better of metric gap must be .*metric\(better="lower"\)'):
        engram.tune(hospitals(), metrics=[gap], **how)
    engram.metric(better="lower")(gap)
    assert list(engram.tune(hospitals(), metrics=[gap], **how).best) == ["fedavg"]


def broken(outputs, targets):
    return 1 / 0


def test_a_schedule_is_a_function_of_the_round():
    def second_alone(number):
        return float(number == 2)

    both = run(schedule=second_alone)
    assert both.experiment.schedule == "second-alone"
    # Nothing moves in the first round: the loss of the common model stays.
    losses = run(schedule=second_alone, eval_every=1).metrics["loss-common"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) != losses[2]


def test_a_run_with_functions_is_resumed_with_them():
    def halved(gradient):
        return gradient / 2

    given = {"loss": squares, "metrics": [widest], "optimizer": halved, "schedule": lambda n: 1 / n}
    whole = run(**given, num_rounds=4, checkpoint_every=1, eval_every=2)
    first = run(**given, num_rounds=2, checkpoint_every=1, eval_every=2)
    more = {"resume": first.folder, "num_rounds": 4, "progress": False, "model": LINEAR}
    resumed = engram.simulate(hospitals(), **more, **given)
    torch.testing.assert_close(resumed.model, whole.model)
    LOSSES.clear()
    words = "loss must be one of your own: a function, in Python, or a plug-in's .*, got 'squares'"
    with pytest.raises(Refused, match=words):
        engram.simulate(hospitals(), resume=first.folder, num_rounds=6, progress=False)
