"""The evaluation that validation picks, clients that never train, and runs that end early."""

from itertools import product

import numpy as np
import pytest
from torch.nn import functional

import engram
from engram.runs.run import Run
from engram.scoring.best_round import Selection
from engram.scoring.evaluation import Evaluation, outlying, summary
from engram.scoring.metrics import METRICS, Metric
from engram.scoring.score_clients import Scorer
from engram.scoring.score_columns import Column
from engram.scoring.tasks import CLASSIFICATION, REGRESSION
from engram.simulations.engine import simulate
from tests.samples import entry
from tests.support import small_of_any, trained_together

ACCURACY = METRICS["accuracy"]
NAMES = ["accuracy", "validation-accuracy", "queries"]
NAN = float("nan")


def evaluation(clients, test, validation):
    columns = {NAMES[0]: test, NAMES[1]: validation, NAMES[2]: [9] * len(clients)}
    return Evaluation(clients, {name: np.array(c, float) for name, c in columns.items()})


def picked(evaluations, unseen=()):
    selection = Selection.empty("", NAMES, 3)
    for number, (test, validation) in enumerate(evaluations):
        found = evaluation([0, 1, 2], test, validation)
        selection = selection.after(10 * number, found, ACCURACY, frozenset(unseen))
    return selection


def test_validation_rows_pick_the_first_of_equal_evaluations_and_test_rows_do_not():
    found = picked([([0.9] * 3, [0.5] * 3), ([0.1] * 3, [0.7] * 3), ([1.0] * 3, [0.6] * 3)])
    assert (found.round, found.since) == (10, 1)
    assert found.evaluation.columns["accuracy"].tolist() == [0.1] * 3
    found = picked([([0.1] * 3, [0.5] * 3), ([0.2] * 3, [0.5] * 3), ([0.3] * 3, [0.5] * 3)])
    assert (found.round, found.since) == (0, 2)


def test_clients_that_never_train_do_not_pick():
    evaluations = [([0.5] * 3, [0.5, 0.5, 0.0]), ([0.5] * 3, [0.4, 0.4, 1.0])]
    assert picked(evaluations).round == 10
    assert picked(evaluations, unseen=[2]).round == 0


def test_clients_that_were_not_scored_are_not_listed():
    found = Selection.empty("", NAMES, 3).after(
        5, evaluation([0, 2], [0.1, 0.3], [0.5, 0.5]), ACCURACY, frozenset()
    )
    assert found.evaluation.clients == [0, 2]
    assert found.evaluation.columns["accuracy"].tolist() == [0.1, 0.3]


def test_an_evaluation_in_which_nobody_has_the_score_says_nothing():
    """It neither picks a round nor brings the end nearer, as of AUC with one class."""
    nobody, somebody = ([0.5] * 3, [NAN] * 3), ([0.1] * 3, [0.5, NAN, NAN])
    assert picked([nobody] * 4).since == 0
    assert picked([nobody] * 4).evaluation is None
    found = picked([nobody, somebody, nobody, nobody])
    assert (found.round, found.since) == (10, 0)


def test_a_selection_is_kept_by_a_checkpoint():
    found = picked([([0.1] * 3, [0.5, NAN, 0.5])])
    again = Selection.from_state("", found.to_state())
    assert (again.round, again.since) == (found.round, found.since)
    for name, leaf in found.columns.items():
        np.testing.assert_array_equal(again.columns[name], leaf)


def test_a_summary_is_of_the_clients_that_train_and_tells_the_others_apart():
    columns = {"rmse": [1.0, 3.0, 7.0], "rmse-common": [2.0, np.inf, 5.0], "rmse-tuned": [4.0] * 3}
    e = Evaluation([0, 1, 2], {name: np.array(column) for name, column in columns.items()})
    told = summary(e, [METRICS["rmse"]], unseen=[2])
    assert (told["rmse"], told["rmse-std"], told["rmse-worst"]) == (2.0, 1.0, 3.0)
    assert (told["rmse-common"], told["rmse-tuned"]) == (None, 4.0)
    assert (told["unseen-rmse"], told["unseen-rmse-common"]) == (7.0, 5.0)


# --- One client among others ---------------------------------------------------------------------


def test_one_clients_score_does_not_decide_by_a_metric_without_ends():
    """The other two get better; the third says 1e30, or the most that counts, or what it likes."""
    rmse, honest = METRICS["rmse"], [[1.0, 1.2], [0.8, 0.9], [0.5, 0.7]]
    for metric, bad in ((rmse, [1e30] * 3), (rmse, [1.0, 2.0, 3.0]), (rmse, [np.inf] * 3)):
        names = [f"{rows}{metric.name}" for rows in ("", "validation-")] + ["queries"]
        selection = Selection.empty("", names, 3)
        for number, (own, far) in enumerate(zip(honest, bad, strict=True)):
            scores = np.array([*own, far])
            found = Evaluation([0, 1, 2], dict.fromkeys(names, scores))
            selection = selection.after(number, found, metric, frozenset())
        assert (selection.round, selection.since) == (2, 0)


def test_claimed_accuracies_cost_the_picked_round_no_more_than_their_share():
    """Two liars of ten clients cost the others at most 2 / 8 by the round they choose."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        honest = rng.random((6, 1)) * np.ones((6, 8))
        scores = np.hstack([honest, rng.integers(0, 2, (6, 2)).astype(float)])
        selection = Selection.empty("", NAMES, 10)
        for number, row in enumerate(scores):
            found = Evaluation(list(range(10)), dict.fromkeys(NAMES, row))
            selection = selection.after(number, found, ACCURACY, frozenset())
        assert honest[selection.round, 0] >= honest.max() - 2 / 8 - 1e-9


def test_who_owns_a_mean_is_named():
    """Of [1, 1.1, 1.2, x] the median is 1.15 or less, and 0.1 the usual distance at most."""
    metrics = [METRICS["rmse"], ACCURACY]

    def named(last, unseen=()):
        scores = np.array([1.0, NAN, 1.1, 1.2, last])
        columns = {"rmse": scores, "accuracy": np.array([0, 0, 0, 0, 1.0])}
        return outlying(Evaluation([0, 2, 3, 5, 7], columns), metrics, unseen)

    # Distances from the median 1.15: 0.15, 0.05, 0.05 and x - 1.15, of which 0.1 is the median.
    assert named(1.15 + 4.7) == {"rmse": [7]}  # more than 4 * max(10 * 0.1, 1.15)
    assert named(1.15 + 4.5) == {}
    assert named(-1e30) == named(np.inf) == {"rmse": [7]}
    assert named(1e30, unseen=[7]) == {}
    pair = Evaluation([0, 1], {"rmse": np.array([1.0, 1e30])})
    assert outlying(pair, metrics[:1]) == {}  # of two, either might be wrong


def test_no_liar_makes_the_mean_that_is_told():
    """It is absent, or no farther off than a liar can be: by its range, or the median, over n."""
    claims = [1e30, -1e30, 3e38, np.inf, 5e3]
    for name, said, count in product([*METRICS, "loss"], claims, [3, 5, 20]):
        with entry(name, said, count):
            metric = REGRESSION.metric if name == "loss" else METRICS[name]
            low, high = max(metric.low, -1.0), min(metric.high, 2.0)
            honest = np.linspace(low + 0.2 * (high - low), low + 0.4 * (high - low), count - 1)
            column, values = Column(name, metric, optional=False), [*honest.tolist(), said]
            if column.impossible(values):
                values[-1] = metric.low if said < 0 else metric.high  # the worst that is let in
            columns = {metric.name: np.array(column.counted(values))}
            found = summary(Evaluation(list(range(count)), columns), [metric])
            mean, spread, median = (found[metric.name + end] for end in ("", "-std", "-median"))
            assert honest.min() <= median <= honest.max()
            assert (mean is None) == (spread is None)
            most = min(metric.high, metric.most) - metric.low
            if mean is not None:
                moved = abs(mean - honest.mean()) * count
                usual = np.median(np.abs(np.array(values) - median))
                bound = count * max(10 * usual, abs(median)) + abs(median - honest.mean())
                assert moved <= max(most if np.isfinite(most) else 0.0, bound) + 1e-9
            again = summary(Evaluation(list(range(count - 1)), {metric.name: honest}), [metric])
            assert again[metric.name] == pytest.approx(honest.mean())


@pytest.fixture
def lying(plug_ins, monkeypatch):
    """A metric by which client 1 says 1e30, whatever its model is."""

    @engram.metric(low=0, better="lower")
    def told(outputs, targets):
        return functional.cross_entropy(outputs, targets)

    def lie(self, common, own, clients, memories):
        found = block(self, common, own, clients, memories)
        for name in found.columns:
            if "told" in name:
                found.columns[name][[client == 1 for client in clients]] = 1e30
        return found

    block = Scorer.block
    monkeypatch.setattr(Scorer, "block", lie)


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_one_client_neither_stops_nor_picks_nor_owns_what_is_told(tmp_path, lying, caplog, method):
    given = {"method": method, "metrics": "told", "num_rounds": 6, "patience": 2}
    found = simulate(small_of_any(**given), tmp_path / "run")
    scored = {r["round"]: r for r in rows(tmp_path / "run") if "told" in r}
    medians = {n: r["validation-told-median"] for n, r in scored.items()}
    best = min(medians.values())
    assert best < medians[0]  # else this would show nothing
    assert found["selected"]["round"] == min(n for n, one in medians.items() if one == best)
    assert found["outlying"] == {"told": [1]}
    assert found["told"] is found["told-std"] is None
    assert 0 < found["told-median"] < 10
    assert found["accuracy" if "accuracy" in found else "loss"] is not None
    assert "the mean told is what clients [1] say, and no others; its median counts" in caplog.text
    (member,) = trained_together([small_of_any(**given | {"num_rounds": 2})])
    assert member.validated(2) == pytest.approx(medians[2])


# --- Runs ------------------------------------------------------------------------------------


def rows(folder):
    return [{k: v for k, v in r.items() if k != "ms"} for r in Run.open(folder).rows()]


def test_a_run_ends_when_patience_does_and_a_resumed_one_does_too(tmp_path):
    # So long steps that no evaluation after the first ones is better.
    given = {"method": "fedavg", "eta": 5.0, "num_rounds": 20, "patience": 2}
    found = simulate(small_of_any(**given), tmp_path / "whole")
    last = rows(tmp_path / "whole")[-1]["round"]
    assert last == found["rounds"] == found["selected"]["round"] + 4 < 20
    again = simulate(small_of_any(**given, resume=str(tmp_path / "whole")), tmp_path / "whole")
    assert {**again, "ms-per-round": 0} == {**found, "ms-per-round": 0}
    simulate(small_of_any(**given | {"num_rounds": 2}), tmp_path / "parts")
    simulate(small_of_any(**given, resume=str(tmp_path / "parts")), tmp_path / "parts")
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


@pytest.mark.parametrize("method", ["fedavg", "pfedme"])
def test_unseen_clients_never_train_and_are_scored_apart(tmp_path, method):
    given = {"method": method, "num_rounds": 8, "unseen_clients": 6}
    found = simulate(small_of_any(**given), tmp_path / "run")
    asked = {client for row in rows(tmp_path / "run") for client in row.get("cohort", ())}
    assert len(found["unseen"]) == 6
    assert asked
    assert not asked & set(found["unseen"])
    clients = found["clients"]
    served = np.array(clients["accuracy"])
    unseen = np.isin(clients["ids"], found["unseen"])
    assert found["unseen-accuracy"] == pytest.approx(served[unseen].mean())
    assert found["accuracy"] == pytest.approx(served[~unseen].mean())
    as_it_is = clients["accuracy-common" if method == "fedavg" else "accuracy-tuned"]
    np.testing.assert_array_equal(served[unseen], np.array(as_it_is)[unseen])


def test_a_model_is_picked_by_its_own_scores(tmp_path):
    """A model that serves and the same fine-tuned may be best in different rounds."""
    found = simulate(small_of_any(method="fedavg", num_rounds=12, eta=1.0), tmp_path / "run")
    scored = {r["round"]: r for r in rows(tmp_path / "run") if "accuracy" in r}
    for key, which in (("selected", ""), ("selected-tuned", "-tuned")):
        best = max(r[f"validation-accuracy{which}"] for r in scored.values())
        picked = found[key]["round"]
        assert scored[picked][f"validation-accuracy{which}"] == best
        assert found[key]["accuracy-common"] == scored[picked]["accuracy-common"]
    assert found["selected"]["round"] != found["selected-tuned"]["round"]
    assert "selected-common" not in found


def test_clients_that_differ_as_clients_do_are_not_named():
    metric = METRICS["log-loss"]
    column = {f"{metric.name}": np.array([0.5, 0.5001, 0.9]), "queries": np.full(3, 9.0)}
    assert outlying(Evaluation([0, 1, 2], column), [metric]) == {}
    column[f"{metric.name}"][2] = 3.0  # more than thrice the median away
    assert outlying(Evaluation([0, 1, 2], column), [metric]) == {"log-loss": [2]}


INF = float("inf")
ERROR = Metric("error", lambda outputs, targets: 0.0, low=0, better="lower")
EVALUATION = Evaluation(
    clients=[0, 1, 4],
    columns={
        "accuracy": np.array([0.5, 1.0, 0.9]),
        "accuracy-common": np.array([0.1, 0.2, 0.6]),
        "accuracy-tuned": np.array([0.7, NAN, 0.9]),
        "loss": np.array([0.5, INF, 1.0]),
        "loss-common": np.array([2.0, 3.0, 4.0]),
        "loss-tuned": np.array([1.0, NAN, 3.0]),
        "error": np.array([NAN, 1.0, 3.0]),
        "error-common": np.array([NAN, NAN, NAN]),
        "error-tuned": np.array([NAN, NAN, NAN]),
        "queries": np.array([25.0, 10.0, 10.0]),
    },
)


def test_summary():
    found = summary(EVALUATION, [METRICS["accuracy"], ERROR, CLASSIFICATION.metric])
    assert found["accuracy"] == pytest.approx(0.8)
    assert found["accuracy-std"] == pytest.approx((0.14 / 3) ** 0.5)  # .3^2 + .2^2 + .1^2 = .14
    assert found["accuracy-median"] == 0.9
    assert found["accuracy-p10"] == pytest.approx(0.58)  # a fifth of the way from 0.5 to 0.9
    assert found["accuracy-common"] == pytest.approx(0.3)
    assert found["accuracy-tuned"] == pytest.approx(0.8)
    assert (found["loss-common"], found["loss"], found["scored"]) == (3.0, None, 3)
    # Lower is better: the worst tenth is the highest. Who has no value is left out.
    assert (found["error"], found["error-p90"], found["error-common"]) == (2.0, 2.8, None)


def test_each_clients_scores():
    found = EVALUATION.listed("queries")
    assert found["accuracy-tuned"] == [0.7, None, 0.9]
    assert found["loss"] == [0.5, None, 1.0]
    assert found["ids"] == [0, 1, 4]
    assert found["queries"] == [25, 10, 10]


def test_scores_by_client_become_columns():
    assert Evaluation.of({3: {"a": 1.0}, 0: {"a": 2.0}}).clients == [0, 3]
    np.testing.assert_array_equal(Evaluation.of({3: {"a": 1}, 0: {"a": 2}}).columns["a"], [2, 1])
