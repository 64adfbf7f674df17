"""`engram reproduce sinewave`, as it is typed: results, tuning, resuming, processes, refusals."""

import json
import math

import pytest

from engram.meta.studies import sinewave
from engram.meta.studies.methods import METHODS
from engram.meta.studies.published import SINEWAVE_PUBLISHED, SINEWAVE_STEPS
from tests.studies.support import reproduce

REGRESSIONS = [name for name in METHODS if name != "protonet"]


@pytest.mark.usefixtures("drawn")
def test_sinewave_gives_a_table_and_figures(tmp_path):
    out = tmp_path / "run"
    result = reproduce("sinewave", "--iterations", "40", "--seeds", "2", "--json", out=out)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found == json.loads((out / "results.json").read_text())
    rows = {(row["batch-size"], row["method"]): row for row in found["rows"]}
    assert len(rows) == 2 * 9  # Table 3, BSGD and MAML apart, and MAML with MOML v1's step
    assert rows[1, "maml"]["iterations"] == 40
    assert rows[1, "nasa"]["iterations"] == 40 * 3 // 25
    assert rows[1, "bspiderboost"]["iterations"] == 33  # (10 + 2 * 3) / 3 tasks, of 2 batches
    assert rows[1, "local-moml"]["iterations"] == 5 * (40 * 9 // 51)  # 3 * (2 + 5 * 3) rows
    assert rows[3, "maml-matched"]["eta"] == rows[3, "moml-v1"]["eta"]
    assert rows[1, "moml-v1"]["published"] == 0.291
    assert all(row["test-error"] > 0 and row["runs"] == 2 for row in rows.values())
    pictures = {path.name for path in out.glob("*.png")}
    assert pictures == {"convergence.png", "fits-k1.png", "fits-k3.png"}
    assert "MAML, v1's eta" in result.stdout


def test_tuning_takes_what_training_tasks_like_best(tmp_path, monkeypatch):
    monkeypatch.setattr(sinewave, "GRID", (1e-6, 0.003, 5.0))  # stands still, learns, diverges
    out = tmp_path / "run"
    words = ["maml", "moml-v1", "-k", "5", "--iterations", "20", "--seeds", "1", "--tune"]
    result = reproduce("sinewave", *words, out=out)
    assert result.exit_code == 0, result.output
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert {row["eta"] for row in rows} == {0.003}
    tried = json.loads((out / "tune-moml-v1-k5.json").read_text())
    assert {run["seed"] for run in tried} == {1, 2}  # none of the runs'
    assert len(tried) == 2 * 3 * 5
    (mine,) = [row for row in rows if row["method"] == "moml-v1"]
    errors = {
        beta: sum(
            sum(run["errors"][-5:])
            for run in tried
            if (run["method"], run["beta"], run["eta"]) == ("moml-v1", beta, 0.003)
        )
        for beta in METHODS["moml-v1"].betas
    }
    assert mine["beta"] == min(errors, key=errors.get)


def test_published_steps_are_the_authors(tmp_path):
    out = tmp_path / "run"
    words = ["moml-v1", "-k", "1", "--iterations", "2", "--seeds", "1", "--published"]
    result = reproduce("sinewave", *words, out=out)
    assert result.exit_code == 0, result.output
    plan = json.loads((out / "plan.json").read_text())
    assert plan["published"]
    (row,) = json.loads((out / "results.json").read_text())["rows"]
    assert (row["beta"], row["eta"]) == (0.3, pytest.approx(0.0015))


def test_steps_are_known_for_every_method():
    tables = [SINEWAVE_PUBLISHED, *SINEWAVE_STEPS.values()]
    for steps in (steps for table in tables for steps in table.values()):
        assert steps.keys() == set(REGRESSIONS)
        for method, (beta, eta) in steps.items():
            assert 0 < beta <= 1
            assert beta == 1 or METHODS[method].betas != (1.0,)
            assert 0 < eta <= 0.1


def test_a_run_that_diverged_is_said_so():
    common = {"batch-size": 1, "name": "maml", "method": "maml", "beta": 1.0, "eta": 9.0}
    common |= {"iterations": 10, "seconds": 1.0, "samples": [0]}
    fine = common | {"tests": [1.0, 2.0], "errors": [1.0]}
    runs = [fine, common | {"tests": [math.nan, 1.0], "errors": [math.inf]}]
    (row,) = sinewave.summarize(runs)
    assert row["diverged"] == 1
    assert math.isinf(row["test-error"])
    assert row["test-error-std"] is None
