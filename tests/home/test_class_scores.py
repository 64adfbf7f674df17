"""Recalls, confusions and calibration of a run's models, by hand from its predictions."""

import json

import numpy as np
import pandas as pd
import pytest

from engram import simulate
from engram.home.class_scores import predicted, reliability
from engram.runs.run import Run
from tests.samples import entry

SMALL = {"num_rounds": 2, "num_clients": 6, "hidden": "8", "unseen_clients": 1, "progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("classes") / "run"
    return simulate(method="fedavg", eta=0.2, out=out, **SMALL)


def rows_of(run):
    seen = run.clients.index[~run.clients["unseen"]]
    return pd.concat([run.predict(client) for client in seen])


def test_confusions_and_recalls_are_those_of_the_predictions(run, engram):
    status, out, _ = engram("show", run.folder, "--per-class", "--json")
    found = json.loads(out.splitlines()[-1])
    assert status == 0
    assert (run.folder / "reliability.png").is_file()
    for label, models in (("fedavg", run.picked), ("fedavg + fine-tuning", run.tuned.picked)):
        rows = rows_of(models)
        both = pd.crosstab(rows["target"], rows["predicted"]).rename(str).rename(columns=str)
        whole = both.reindex(index=found["classes"], columns=found["classes"], fill_value=0)
        assert found["confusions"][label] == whole.to_numpy().tolist()
        recalls = [
            f"{100 * whole[c][c] / n:.1f}" if (n := whole.loc[c].sum()) else "-" for c in whole
        ]
        assert any(line.split()[-len(recalls) :] == recalls for line in out.splitlines())


def test_a_reliability_plot_has_accuracy_and_confidence_in_bins(run):
    _, y, p = predicted(Run.open(run.folder))
    rows = rows_of(run.picked)
    columns = [column for column in rows if column.startswith("probability")]
    np.testing.assert_allclose(p, rows[columns], atol=1e-6)
    confidence, hits = p.max(1), p.argmax(1) == y
    bins = [(confidence > k / 15) & (confidence <= (k + 1) / 15) for k in range(15)]
    bins = [some for some in bins if some.any()]
    means = [[values[some].mean() for some in bins] for values in (confidence, hits)]
    (panel,) = reliability({"fedavg": (y, p)})["reliability"].axes
    np.testing.assert_allclose(panel.lines[1].get_data(), means)
    ece = sum(some.mean() * abs(a - c) for some, c, a in zip(bins, *means, strict=True))
    assert panel.get_title() == f"fedavg\nECE {ece:.3f}"


def test_what_has_no_classes_is_refused_in_one_line(run, tmp_path, engram):
    x = np.random.default_rng(0).normal(size=(3, 20, 2))
    data = [(rows, rows[:, 0]) for rows in x]
    own = {"task": "regression", "num_rounds": 1, "progress": False, "out": tmp_path / "values"}
    values = simulate(data, method="fedavg", **own)
    for folder, words, said in (
        (run.folder, ["--csv"], "--per-class excludes --csv and --latex: --json has its counts"),
        (
            run.folder,
            ["--width", "x"],
            "--width must be one or two, the columns of a paper, got 'x'",
        ),
        (
            values.folder,
            [],
            "task must be classification, for predictions by class, got 'regression'",
        ),
    ):
        with entry(said):
            assert engram("show", folder, "--per-class", *words) == (2, "", f"engram: {said}\n")
