"""A constant and a linear model for each client: against scikit-learn by hand, and in reports."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from engram.client.memory import RamStore
from engram.cohort.trainer.chunks import score
from engram.cohort.trainer.trainer import Trainer
from engram.compare import linear
from engram.compare import references as reference_models
from engram.compare.comparison_api import compare
from engram.compare.references import (
    CONSTANT,
    LINEAR,
    NAMES,
    POOLED,
    read_notes,
    read_references,
    references,
    write_references,
)
from engram.data.load_federation import federated_data
from engram.data.readers.in_memory import hold
from engram.runs.run import Run
from engram.scoring.query_rows import query_rows
from engram.settings.errors import Refused
from engram.studio.pages.reproduce_command import repeating
from tests.samples import entry
from tests.support import initial_model, small

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 4)).astype(np.float32)
VALUES = (X @ [1.0, -2.0, 0.5, 0.0] + 0.1 * RNG.normal(size=400)).astype(np.float32)


def own_rows(e, client):
    data = federated_data(e)
    return [
        (split.x.numpy()[split.rows[client]], split.y.numpy()[split.rows[client]])
        for split in (data.train, data.test)
    ]


def test_the_constant_is_the_client_s_most_frequent_class():
    e = small(partition="pathological", classes_per_client=2, validation_fraction=0.0)
    found = references(e).scores
    for client in (0, 5, 19):
        (_, y), (_, tested) = own_rows(e, client)
        most = np.bincount(y).argmax()
        accuracy = np.mean(tested == most)
        assert found[CONSTANT]["accuracy"][client] == pytest.approx(accuracy)
        shares = np.maximum(np.bincount(y, minlength=10) / len(y), 1e-6)
        entropy = -np.log(shares / shares.sum())[tested].mean()
        assert found[CONSTANT]["loss"][client] == pytest.approx(entropy, rel=1e-4)


def test_of_values_it_is_ridge_by_validation_rows_and_the_mean():
    e = small(
        task="regression", dataset=hold({"x": X, "y": VALUES}), partition="iid", num_clients=4
    )
    found = references(e).scores
    (x, y), (tested, expected) = own_rows(e, 1)
    mean = np.square(expected - y.mean()).mean()
    assert found[CONSTANT]["loss"][1] == pytest.approx(mean, rel=1e-4)
    fits = [
        make_pipeline(StandardScaler(), Ridge(alpha=strength * len(y))).fit(x, y)
        for strength in (1e-3, 1e-2, 0.1, 1.0)
    ]
    losses = [np.square(expected - fit.predict(tested)).mean() for fit in fits]
    assert any(found[LINEAR]["loss"][1] == pytest.approx(loss, rel=1e-3) for loss in losses)
    assert found[LINEAR]["loss"][1] < 0.05 < found[CONSTANT]["loss"][1]


def test_a_client_with_one_class_has_the_constant():
    e = small(partition="pathological", classes_per_client=1)
    found = references(e).scores
    assert found[LINEAR] == found[CONSTANT]
    assert found[CONSTANT]["accuracy"] == [1.0] * 20


def test_a_reference_is_scored_on_the_rows_that_methods_are_scored_on():
    given = {"protocol": "few-shot", "validation_fraction": 0.0, "adapt_shots": 5}
    e = small(partition="iid", **given)
    scores, data = Trainer(e, federated_data(e), RamStore()), federated_data(e)
    queries = score(scores, initial_model(scores), [3], server_round=0).queries
    assert len(query_rows(e, data.test, 3)) == queries == len(data.test.rows[3]) - 5
    classes = data.test.y.numpy()[query_rows(e, data.test, 3)]
    most = np.bincount(data.train.y.numpy()[data.train.rows[3]]).argmax()
    expected = np.mean(classes == most)
    assert references(e).scores[CONSTANT]["accuracy"][3] == pytest.approx(expected)


def test_clients_that_never_train_have_no_part_in_a_comparison_with_references(tmp_path):
    quick = {"num_clients": 6, "clients_per_round": 2, "num_rounds": 1, "unseen_clients": 2}
    found = compare(methods=["fedavg"], seeds=2, out=tmp_path / "c", progress=False, **quick)
    records = [Run.open(run.folder) for run in found.runs["fedavg"]]
    held = read_references(tmp_path / "c", records, "accuracy")[LINEAR]
    for record, scores in zip(records, held, strict=True):
        assert np.flatnonzero(np.isnan(scores)).tolist() == record.results["unseen"]


def test_other_tasks_have_none_and_say_so():
    for task in ("multi-label", "next-token"):
        notes = dict.fromkeys((CONSTANT, LINEAR, POOLED), f"none for the task {task}")
        assert references(small(task=task)) == ({}, notes)


def federation(y, x=X, **settings):
    usual = {"partition": "iid", "num_clients": 4, "validation_fraction": 0.0}
    return small(dataset=hold({"x": x, "y": y}), **usual, **settings)


# Of each of four federations, the reference that is best by how its targets are made.
OF_VALUES = {"task": "regression"}
BEST = {
    "no input says anything": ((RNG.random(400) < 0.2).astype(np.int64), {}, CONSTANT),
    "a line of inputs for all": ((X[:, 0] + X[:, 1] > 0).astype(np.int64), {}, POOLED),
    "values of no input": ((3 + RNG.normal(size=400)).astype("f4"), OF_VALUES, CONSTANT),
    "a line of values": (VALUES, OF_VALUES, POOLED),
}


def test_where_a_reference_wins_its_scores_are_scikit_learn_s():
    for name, federation_and_best in BEST.items():
        with entry(name):
            check_scores(*federation_and_best)


def check_scores(y, settings, best):
    e = federation(y, **settings)
    found = references(e)
    assert found.notes == {}
    means = {reference: np.mean(of["loss"]) for reference, of in found.scores.items()}
    assert min(means, key=means.get) == best
    rows = [own_rows(e, client) for client in range(4)]
    x, y = (np.concatenate([train[k] for train, _ in rows]) for k in (0, 1))
    model = Ridge(alpha=0.1 * len(y)) if settings else LogisticRegression(C=1 / (0.1 * len(y)))
    model = make_pipeline(StandardScaler(), model).fit(x.astype(float), y)
    for client, (_, (tested, expected)) in enumerate(rows):
        if settings:
            loss = mean_squared_error(expected, model.predict(tested))
        else:
            loss = log_loss(expected, model.predict_proba(tested), labels=[0, 1])
        assert found.scores[POOLED]["loss"][client] == pytest.approx(loss, rel=1e-3)


def test_with_more_columns_than_rows_the_linear_model_is_the_same():
    wide = np.hstack([X, RNG.normal(size=(400, 200)).astype(np.float32)])
    e = federation((X[:, 0] > 0).astype(np.int64), wide)
    (x, y), (tested, expected) = own_rows(e, 2)
    assert len(x) < x.shape[1]
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (0.1 * len(y))))
    probabilities = model.fit(x.astype(float), y).predict_proba(tested)
    found = references(e).scores[LINEAR]["loss"][2]
    assert found == pytest.approx(log_loss(expected, probabilities), rel=0.01)


def test_logistic_regressions_are_scikit_learn_s_at_each_strength():
    two, noisy = (X[:, 0] > 0).astype(int), RNG.integers(0, 2, 400)  # the first are separable
    three, wide = np.digitize(X[:, 1], [-0.5, 0.5]), RNG.normal(size=(400, 210))
    strengths = (0.1, 1e-3, 1.0)
    own = X.astype(float)
    for x, y, within in (
        (own, two, 1e-6),
        (own, noisy, 1e-6),
        (own, three, 5e-3),
        (wide, noisy, 5e-3),
    ):
        classes = np.unique(y)
        for strength, fitted in zip(
            strengths, linear.FITS["classification"](x, 2 * y, strengths, 6), strict=True
        ):
            model = LogisticRegression(C=1 / (strength * len(y)), tol=1e-10, max_iter=10**4)
            shares = np.exp(fitted(x))
            expected = np.maximum(model.fit(x, y).predict_proba(x), 1e-6)
            np.testing.assert_allclose(shares[:, 2 * classes], expected, atol=within)
            assert (shares[:, 1::2] < 2e-6).all()


def test_what_is_left_out_or_of_few_rows_says_so(monkeypatch):
    e = federation((X[:, 0] > 0).astype(np.int64))
    rows = sum(len(own_rows(e, client)[0][1]) for client in range(4))
    monkeypatch.setattr(reference_models, "_MOST", 100)
    monkeypatch.setattr(reference_models, "_SECONDS", 0.0)
    found = references(e)
    assert found.notes == {
        LINEAR: "of 0 of 4 clients: its 0 s were over",
        POOLED: f"fitted on 25 random rows of {rows}",
    }
    assert found.scores[LINEAR]["accuracy"] == [None] * 4
    assert None not in found.scores[POOLED]["accuracy"]
    assert None not in found.scores[CONSTANT]["accuracy"]


def test_a_comparison_shows_them_and_how_far_the_best_method_is_from_them(tmp_path, capsys):
    # Every row's class is the sign of one input: a linear model is nearly perfect.
    quick = {"num_clients": 4, "clients_per_round": 4, "num_rounds": 2, "hidden": "4"}
    y = (X[:, 0] > 0).astype(np.int64)
    found = compare(
        (X, y), methods=["fedavg"], seeds=2, out=tmp_path / "c", progress=False, **quick
    )
    held = json.loads((tmp_path / "c" / "references.json").read_text())
    assert held.keys() == {"0", "1"}
    assert np.mean(held["0"][LINEAR]["accuracy"]) > 0.9
    from engram.cli.next_command import show_found

    show_found(found.folder, as_json=False)
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if LINEAR in line)
    mean = 100 * np.mean([held[seed][LINEAR]["accuracy"] for seed in held])
    assert f"{mean:.1f} ±" in line
    assert CONSTANT in " ".join(out.split()).partition("test rows of 4 clients and 2 seeds")[2]
    line = next(line for line in out.splitlines() if "untrained model" in line)
    before = [run.metrics.loc[0, "accuracy-common"] for run in found.runs["fedavg"]]
    assert f"{100 * np.mean(before):.1f} ±" in line  # the same for all methods


def test_seeds_that_share_rows_share_the_fits(tmp_path, monkeypatch):
    fits, fit = [], linear.fit
    monkeypatch.setattr(linear, "fit", lambda *given: fits.append(given) or fit(*given))
    users = np.repeat(np.arange(4), 50)
    rows = {
        f"{key}_{part}": of[:200]
        for part in ("train", "test")
        for key, of in {"x": X, "y": (X[:, 0] > 0).astype(np.int64), "task": users}.items()
    }
    given = {"dataset": hold(rows), "partition": "natural", "num_clients": 4}
    for fraction, count in ((0.0, 5), (0.2, 15)):  # validation rows are drawn by the seed
        fits.clear()
        each = [small(**given, validation_fraction=fraction, seed=seed) for seed in range(3)]
        write_references(tmp_path, each)
        assert len(fits) == count
        held = json.loads((tmp_path / "references.json").read_text())
        assert held.keys() == {"0", "1", "2"}
        expected = pytest.approx(references(each[2]).scores[LINEAR]["loss"], rel=1e-3)
        assert held["2"][LINEAR]["loss"] == expected


def test_a_comparison_has_the_references_that_are_asked_for(tmp_path, capsys):
    quick = {"num_clients": 4, "num_rounds": 1, "hidden": "4", "engine": "sequential"}
    for asked, option, names in [
        ("none", "none", []),
        ((), "none", []),
        ("pooled", "pooled", [POOLED]),
        (["constant", "linear"], "constant,linear", [CONSTANT, LINEAR]),
    ]:
        folder = tmp_path / str(asked)
        found = compare(methods="fedavg", seeds=1, out=folder, references=asked, **quick)
        rows = found.summary().index.get_level_values(0)
        assert [name for name in NAMES if name in rows] == names
        assert ("references seed 0: 5 of 5 models" in capsys.readouterr().err) == bool(names)
        config = Run.open(folder / "fedavg-seed0").config
        assert f"--references {option} " in f"{repeating(folder, config)} "
    with pytest.raises(Refused, match="references must be none, or some of constant, linear, poo"):
        compare(methods="fedavg", references="lasso")


def test_the_command_goes_on_with_the_references_that_were_asked_for(engram):
    quick = ["-s", "num-clients=4", "-s", "num-rounds=1", "-s", "hidden=4", "--seeds", "1"]
    assert engram("compare", "fedavg", *quick, "--references", "pooled", "--out", "c")[0] == 0
    Path("c/references.json").unlink()
    assert engram("compare", "--resume", "c")[0] == 0
    assert json.loads(Path("c/references.json").read_text())["0"].keys() == {POOLED}
    code, _, err = engram("compare", "fedavg", "--references", "lasso")
    assert code == 2
    assert "--references must be none, or some of constant, linear, pooled, got 'lasso'" in err


def test_names_of_older_files_are_read(tmp_path):
    held = {"0": {"constant, own": {"accuracy": [0.5]}}, "notes": {"linear model, own": "none"}}
    (tmp_path / "references.json").write_text(json.dumps(held))
    assert read_notes(tmp_path) == {LINEAR: "none"}
    record = SimpleNamespace(settings={"seed": 0}, results={})
    assert [*read_references(tmp_path, [record], "accuracy")] == [CONSTANT]
