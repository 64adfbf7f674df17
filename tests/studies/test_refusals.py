"""Refusals of studies before anything is written; of ranges and names, one of each study."""

import pytest

from engram.bandits.studies.environments import ENVIRONMENTS
from engram.settings.errors import Refused
from tests.samples import entry
from tests.studies.support import reproduce

REFUSED = {
    "sinewave": {
        "moml": "method must be one of maml, bsgd",
        "protonet": "method must be one of maml, bsgd",
        "maml maml": "methods must be named once each, got maml, maml",
        "moml-v1 --tasks-per-step 26": "tasks-per-step must be at most 25, the number of tasks",
        "bsgd --tasks-per-step 26": "an iteration draws 26 tasks, and there are 25",
        "--tasks-per-step 0": "tasks-per-step must be at least 1, got 0",
        "-k 0": "batch-size must be at least 1, got 0",
        "--iterations 0": "iterations must be at least 1, got 0",
        "--hessian none": "hessian must be one of exact, first-order",
        "--tune --published": "--tune and --published exclude each other",
        "--published --hessian exact": "--published is first-order",
    },
    "one-shot": {
        "--dataset mnist": "dataset must be one of omniglot, cifar100, got 'mnist'",
        "bspiderboost": "method must be one of maml, reptile, protonet",
    },
    "federated": {
        "--dataset digits": "dataset must be one of mnist, cifar10, cifar100-coarse, or npz:PATH"
    },
    "molar-regression": {
        "--figure 4": "figure must be one of 2, 3, 7, 8, 9, got 4",
        "--figure 2 --figure 2": "figures must be named once each, got 2, 2",
        "--trials 0": "trials must be at least 1, got 0",
    },
    "molar-bandit": {
        "--horizon 0": "horizon must be at least 1, got 0",
        "--trials 0": "trials must be at least 1, got 0",
        "--figure 5": "with --figure 5, and with no other, got --figure 5 and no table",
        "--table a.csv --task a --target b": "got --figure 4 and a.csv",
        "--figure 5 --table a.csv": "different columns, got '' for both",
        "--horizon 100000000": "trials of 100000000 rounds, 1 at once, needs",
    },
    "meta-ban": {
        "moon": f"world must be one of {', '.join(ENVIRONMENTS)}, got 'moon'",
        "digits mnist": "digits takes no sources, got mnist",
        "classes": "classes takes one or more data sets",
        "ratings": "ratings takes one CSV file, got nothing",
        "ratings no.csv": "no.csv",
        "ratings no.csv --columns a,b": "columns must be three",
        "-m ucb": "method must be one of random, ",
        "-m club -m club": "methods must be named once each",
        "--rounds 0": "rounds must be at least 1, got 0",
        "--seeds 0": "seeds must be at least 1, got 0",
        "--ablation eta": "ablation must be one of nu, got 'eta'",
        "-m club --ablation nu": "an ablation is of meta-ban",
    },
    "universal": {
        "quadratic": "setting must be one of strongly-convex, logistic, squared",
        "linear linear": "settings must be named once each, got linear, linear",
        "--horizon 0": "horizon must be at least 1, got 0",
        "--seeds 0": "seeds must be at least 1, got 0",
    },
}


@pytest.mark.parametrize("study", REFUSED)
def test_what_cannot_be_is_refused_and_nothing_written(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, message in REFUSED[study].items():
        with entry(words):
            result = reproduce(study, *words.split(), out=tmp_path / "run")
            assert isinstance(result.exception, Refused), result.output
            assert message in str(result.exception)
            assert list(tmp_path.iterdir()) == []
