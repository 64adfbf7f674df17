"""Scores with the noise of local privacy: how much it is, what it does not rank, who pays."""

import numpy as np
import pytest

from engram.client import app as module
from engram.compare.comparison_folder import find_runs
from engram.compare.report_rows import report_rows
from engram.compare.text_tables import method_table
from engram.data.load_federation import federated_data
from engram.guards.accounting.guarantee import guarantee
from engram.guards.calibration import noise_multiplier
from engram.guards.presets import is_scored
from engram.runs.run import Run
from engram.simulations.engine import simulate
from engram.sites.audit import AUDIT, Audit
from tests.sites.budgets import books, epsilon_of
from tests.sites.test_budget_runs import SETTINGS, run, sites
from tests.support import small

UNSET = {"noise_multiplier": 1.0}  # what a target is solved for


@pytest.fixture(autouse=True)
def _afresh():
    module._node.cache_clear()


def test_the_noise_stands_beside_the_mean_and_nothing_is_ranked(tmp_path):
    sites(tmp_path, 0, 0, 0)
    results = run(tmp_path)
    # Test and validation rows, of the served, the common and the fine-tuned model.
    noisy = [name for name, own in results["clients"].items() if "accuracy" in name and own[0]]
    assert len(noisy) == 6
    deviation = 8.0 * np.sqrt(len(noisy)) / 2 / np.sqrt(3)  # a range of 1, a mean of three clients
    assert results["accuracy-noise"] == pytest.approx(deviation)
    assert results["accuracy"] == pytest.approx(np.mean(results["clients"]["accuracy"]))
    assert not [name for name in results if "selected" in name]
    ends = ("-std", "-median", "-p10", "-worst")
    assert {results[f"accuracy{end}"] for end in ends} == {None}
    runs = find_runs(tmp_path / "run")
    metric = Run.open(tmp_path / "run").metrics[0]
    first = report_rows(runs)[0]
    reference = {"accuracy": 0.5, "accuracy-p10": 0.4, "accuracy-worst": 0.3}
    table = method_table([first], metric, {"reference": reference})
    shown = dict(zip(table.heading, map(list, zip(*table.rows, strict=True)), strict=True))
    assert shown["noise"] == [f"{100 * deviation:.1f}", "-"]
    assert shown["mean ± sd"][0] == f"{100 * results['accuracy']:.1f}"
    assert (shown["p10"], shown["worst"]) == (["-", "40.0"], ["-", "30.0"])
    assert "worse" not in shown


def test_exact_scores_of_a_simulation_are_ranked_as_before(tmp_path):
    simulate(small(**SETTINGS), tmp_path)
    results = Run.open(tmp_path).results
    assert {"selected", "accuracy-worst"} <= results.keys()
    assert "accuracy-noise" not in results


@pytest.mark.parametrize("eval_every", [10, 2])
def test_a_total_pays_for_scores_that_somebody_wants(tmp_path, eval_every):
    sites(tmp_path, 10.0, 10.0, 10.0)
    results = run(tmp_path, eval_every=eval_every)
    kinds = [(line["kind"], line["round"]) for line in books(tmp_path / "client-0", 10.0).lines]
    trained = [("train", number) for number in (1, 2, 3)]
    if eval_every == 10:  # the default
        assert kinds == trained
        assert results["accuracy"] is None
        assert results["clients"]["accuracy"] == [None] * 3
    else:
        assert kinds == [*trained[:2], ("evaluate", 2), trained[2], ("evaluate", 3)]
        assert results["accuracy"] is not None


@pytest.mark.parametrize("total", [0, 10.0])
def test_a_site_s_own_log_has_its_exact_scores(tmp_path, total):
    sites(tmp_path, total, total, total)
    results = run(tmp_path)
    e = small(**SETTINGS)
    rows = len(federated_data(e).test.rows[0])
    (line,) = [
        line
        for line in Audit(tmp_path / "client-0" / AUDIT).read().lines
        if line["kind"] == "evaluate" and line["round"] == 3
    ]
    score = line["metrics"]["accuracy"]
    assert 0 <= score <= 1
    assert score * rows == pytest.approx(round(score * rows), abs=1e-4)
    assert line["rows"] == rows
    assert abs(results["clients"]["accuracy"][0] - score) > 1e-3  # what left has noise


def test_a_target_is_for_rounds_and_scores():
    for eval_every, scored in [(10, 0), (2, 3), (5, 1), (7, 1)]:
        e = small(**SETTINGS | {"num_rounds": 5, "eval_every": eval_every, "epsilon": 4.0} | UNSET)
        z = noise_multiplier(e)
        assert epsilon_of([(2 / z) ** 2] * (5 + scored)) == pytest.approx(4.0, rel=2e-3)
        assert epsilon_of([(2 / z) ** 2] * (5 + scored)) <= 4.0
        assert "sites' scores included" in guarantee(e)
        assert [is_scored(e, number) for number in (0, 1, 5)] == [False, *[scored > 0] * 2]


def test_a_run_with_a_target_keeps_to_it_with_its_scores(tmp_path):
    sites(tmp_path, 0, 0, 0)
    results = run(tmp_path, eval_every=2, epsilon=4.0, **UNSET)
    assert results["epsilon"] <= 4.0
    z = results["noise-multiplier"]
    assert results["epsilon"] == pytest.approx(epsilon_of([(2 / z) ** 2] * 5), rel=1e-6)
