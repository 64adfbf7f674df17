"""Table 5 of the MOML paper: its settings, short runs, and what is made of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from engram.meta.studies import federated
from engram.meta.studies.published import TABLE_5
from engram.meta.studies.settings import FederatedSettings
from engram.settings.experiment import Experiment
from engram.simulations.job_pool import Pool
from tests.support import write_npz


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Ten classes of images, each a pattern of its own with noise."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 3300)
    patterns = rng.integers(0, 120, (10, 1, 4))
    x = (patterns[y] + rng.integers(0, 100, (len(y), 1, 4))).astype(np.uint8)
    return write_npz(tmp_path_factory.mktemp("images") / "a.npz", x=x, y=y)


def settings(images, **more):
    given = {"methods": ("local-moml", "per-fedavg", "pfedme"), "tasks": (1,), "local_steps": (2,)}
    return FederatedSettings(dataset=images, rounds=4, seeds=2, **given | more)


def test_the_experiment_is_that_of_section_6_3(images):
    s = FederatedSettings(dataset=images)
    e = federated._experiment(s, "local-moml", 5, 10, 2)
    told = {
        *(e.num_clients, e.clients_per_round, e.shards, e.local_steps, e.batch_size, e.num_rounds),
        *(e.hidden, e.rows_per_class, e.test_rows_per_class, e.partition, e.protocol, e.seed),
    }
    assert told == {50, 20, 4, 10, 5, 10_000, "40,40", 68, 34, "halves", "few-shot", 2}
    assert (e.own.alpha, e.own.eta, e.own.beta, e.own.initial_batch_size) == (0.001, 0.001, 0.9, 5)
    assert (e.adapt_shots, e.adapt_steps, e.adapt_lr) == (5, 10, 0.001)
    pfedme = federated._experiment(s, "pfedme", 1, 4, 0).own
    assert (pfedme.lambda_, pfedme.inner_steps) == (100, 50)
    coarse = federated._experiment(FederatedSettings(dataset="cifar100-coarse"), "pfedme", 1, 4, 0)
    # A class of the first ten has a rows at 25 clients and a/2 at three of the others, at most.
    for rows, available in ((coarse.rows_per_class, 2500), (coarse.test_rows_per_class, 500)):
        assert 25 * rows + 3 * (rows // 2) <= available < 25 * 34 * rows // 15


def test_runs_are_those_of_simulate_and_resume(images, tmp_path):
    s = settings(images, methods=("local-moml",))
    done = federated.work(s, Pool(tmp_path, processes=1))
    assert [run["seed"] for run in done] == [0, 1]
    assert done[0]["rounds"] == [0, 1, 2, 3, 4]
    for run in done:
        assert run["accuracy"] == pytest.approx(1 - run["errors"][-1])
        assert run["served"] == run["accuracy"]  # by fine-tuned models
    assert federated.work(s, Pool(tmp_path, processes=1)) == done


def _case(row):
    return row["tasks"], row["local-steps"], row["method"]


@pytest.mark.full
@pytest.mark.usefixtures("drawn")
def test_the_table_has_the_papers_figures_beside_ours(images, tmp_path):
    s = settings(images, tasks=(1, 5), local_steps=(4,))
    done = federated.work(s, Pool(tmp_path, processes=1))
    found = federated.report(s, done)
    rows = found.results["rows"]
    assert [(row["tasks"], row["method"]) for row in rows] == [
        (tasks, method) for tasks in (1, 5) for method in s.methods
    ]
    for row in rows:
        known = TABLE_5["mnist"][row["tasks"], 4][row["method"]]
        assert (row["published"], row["published-std"]) == known
        own = [run["accuracy"] for run in done if _case(run) == _case(row)]
        assert row["accuracy"] == pytest.approx(100 * np.mean(own))
        if row["method"] != "pfedme":  # which serves by models that are not fine-tuned
            assert row["served"] == row["accuracy"]
    assert found.files["convergence.png"].startswith(b"\x89PNG")
    json.dumps(rows, allow_nan=False)


def test_the_settings_of_a_run_are_whole(images):
    """What a job takes to another process makes the same experiment there."""
    e = federated._experiment(settings(images), "pfedme", 1, 2, 0)
    assert Experiment.from_config(e.to_config()) == e
    assert Path(e.data_dir).is_absolute()
