"""Metrics: what they are called, what they are computed from, and how they are shown."""

import difflib
import math

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from engram.scoring.metrics import METRICS, Metric, metric, named
from engram.scoring.score_columns import Column
from engram.scoring.score_metrics import measure
from engram.scoring.tasks import CLASSIFICATION, TASKS
from engram.settings.errors import Refused
from tests.samples import entry
from tests.support import small

# Two clients with two and three rows that count, of two classes.
OUTPUTS = torch.tensor([[[2.0, 1.0], [0.0, 1.0], [9.0, 9.0]], [[1.0, 0.0], [0.0, 3.0], [0.0, 1.0]]])
TARGETS = torch.tensor([[0, 0, 0], [1, 1, 1]])
COUNTED = torch.tensor([[True, True, False], [True, True, True]])


pytestmark = pytest.mark.usefixtures("plug_ins")


def test_accuracy_and_loss_by_hand():
    found = measure(METRICS["accuracy"], OUTPUTS, TARGETS, COUNTED)
    torch.testing.assert_close(found, torch.tensor([1 / 2, 2 / 3]))
    # -log of sigmoid(1) and sigmoid(-1); of sigmoid(-1), sigmoid(3), sigmoid(1).
    rows = [[0.3132617, 1.3132617], [1.3132617, 0.0485874, 0.3132617]]
    expected = torch.tensor([sum(values) / len(values) for values in rows])
    torch.testing.assert_close(measure(CLASSIFICATION.metric, OUTPUTS, TARGETS, COUNTED), expected)


def test_a_metric_of_all_rows_sees_a_clients_own_and_no_padding():
    seen = []

    @metric(low=0, better="lower")
    def widest_gap(outputs, targets):
        """Largest difference of two outputs."""
        seen.append((len(outputs), len(targets)))
        return (outputs[:, 0] - outputs[:, 1]).abs().max()

    found = measure(METRICS["widest-gap"], OUTPUTS, TARGETS, COUNTED)
    assert (found.tolist(), seen) == ([1.0, 3.0], [(2, 2), (3, 3)])
    assert METRICS["widest-gap"].meaning == "Largest difference of two outputs"
    assert [m.name for m in named(["widest-gap", "accuracy"])] == ["widest-gap", "accuracy"]


def test_outputs_that_are_not_finite_have_the_worst_value():
    for bad in [float("nan"), float("inf"), -float("inf")]:
        with entry(bad):
            outputs = OUTPUTS.clone()
            outputs[0, 0, 1] = bad
            outputs[1, 2, 0] = bad
            whole = Metric("whole", lambda outputs, targets: 0.5, low=-3, high=1)
            each = METRICS["accuracy"], CLASSIFICATION.metric, whole
            found = [measure(one, outputs, TARGETS, COUNTED).tolist() for one in each]
            assert found == [pytest.approx([0, 1 / 3]), [math.inf] * 2, [-3, -3]]


def test_padding_does_not_count_even_where_it_is_not_finite():
    outputs = OUTPUTS.clone()
    outputs[0, 2] = float("inf")
    assert measure(CLASSIFICATION.metric, outputs, TARGETS, COUNTED)[0].isfinite()
    whole = Metric("whole", lambda outputs, targets: outputs.isfinite().all().float())
    assert measure(whole, outputs, TARGETS, COUNTED).tolist() == [1, 1]


def test_a_name_that_cannot_be_a_column_is_refused():
    for name in ["loss", "clients", "train_loss", "Top", "_hidden"]:
        with entry(name):

            def score(outputs, targets):
                return 0.0

            score.__name__ = name
            with pytest.raises(ValueError, match="name of a metric must be"):
                metric()(score)


def test_a_range_must_have_some_room():
    with pytest.raises(ValueError, match="low must be below high = 0, got 1"):
        metric(low=1, high=0)(test_a_range_must_have_some_room)
    with pytest.raises(ValueError, match="better must be higher or lower"):
        metric(better="most")(test_a_range_must_have_some_room)


def test_values_are_shown_in_percent_or_with_four_digits():
    share, loss = METRICS["accuracy"], CLASSIFICATION.metric
    assert (share.in_words(0.81234), share.in_words(0.81234, 1)) == ("81.23", "81.2")
    assert (loss.in_words(1234.567), loss.in_words(None)) == ("1235", "-")


# --- The built-in ones ---------------------------------------------------------------------------


def score(name, outputs, targets):
    return np.asarray(METRICS[name].score(outputs, targets)).mean()


def drawn(kind, seed=0, rows=40):
    """Outputs and targets of a kind; of five classes, one is in no row."""
    draws = torch.Generator().manual_seed(seed)
    if kind == "classes":
        outputs, targets = torch.randn(rows, 5, generator=draws), torch.arange(rows) % 4
        return outputs + 2 * torch.nn.functional.one_hot(targets, 5), targets
    if kind == "labels":
        targets = (torch.rand(rows, 3, generator=draws) < 0.4).float()
        return torch.randn(rows, 3, generator=draws) + targets, targets
    if kind == "tokens":
        return torch.randn(rows, 6, 5, generator=draws), torch.arange(rows * 6).view(rows, 6) % 5
    if kind == "times":
        time, event = 5 * torch.rand(rows, generator=draws), torch.arange(rows) % 3 > 0
        return torch.randn(rows, 5, generator=draws), torch.stack([time, event.float()], 1)
    targets = torch.randn(rows, generator=draws)
    return (targets + torch.randn(rows, generator=draws))[:, None], targets


def by_scikit_learn(kind, outputs, targets):
    y = targets.numpy()
    if kind == "values":
        found = outputs[:, 0].numpy()
        squares = reference.mean_squared_error(y, found)
        absolute = reference.mean_absolute_error(y, found)
        return {"rmse": squares**0.5, "mae": absolute, "r2": reference.r2_score(y, found)}
    if kind == "labels":
        scores = outputs.double().sigmoid().numpy()
        each = [(y[:, k], scores[:, k]) for k in range(3)]
        return {
            "f1": reference.f1_score(y, scores > 0.5, average="macro"),
            "auc": reference.roc_auc_score(y, scores, average="macro"),
            "log-loss": np.mean([reference.log_loss(*label) for label in each]),
            "brier": np.mean([reference.brier_score_loss(*label) for label in each]),
        }
    scores = outputs.double().softmax(-1).reshape(-1, 5).numpy()
    y = y.reshape(-1)
    found = {"log-loss": reference.log_loss(y, scores, labels=range(5))}
    if kind == "tokens":
        return found | {"perplexity": math.exp(found["log-loss"])}
    aucs = [reference.roc_auc_score(y == k, scores[:, k]) for k in range(4)]
    return found | {
        "accuracy": reference.accuracy_score(y, scores.argmax(1)),
        "balanced-accuracy": reference.balanced_accuracy_score(y, scores.argmax(1)),
        "f1": reference.f1_score(y, scores.argmax(1), average="macro"),
        "auc": np.mean(aucs),
        "brier": reference.brier_score_loss(y, scores, labels=range(5)),
    }


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_metrics_are_those_of_scikit_learn():
    for kind in ["classes", "labels", "tokens", "values"]:
        with entry(kind):
            for seed in range(3):
                outputs, targets = drawn(kind, seed)
                for name, expected in by_scikit_learn(kind, outputs, targets).items():
                    assert score(name, outputs, targets) == pytest.approx(expected, rel=1e-5), name


def test_auc_and_brier_of_two_classes_are_the_usual_ones():
    outputs, targets = torch.randn(30, 2, generator=torch.Generator()), torch.arange(30) % 2
    scores = outputs.double().softmax(-1)[:, 1].numpy()
    y = targets.numpy()
    assert score("auc", outputs, targets) == pytest.approx(reference.roc_auc_score(y, scores))
    brier = reference.brier_score_loss(y, scores)
    assert score("brier", outputs, targets) == pytest.approx(brier, rel=1e-6)


def test_expected_calibration_error_by_hand():
    # Confidence 0.8 in four rows, of which two are right, and 0.6 in one, which is right.
    outputs = torch.tensor([[0.8, 0.2]] * 4 + [[0.4, 0.6]]).log()
    targets = torch.tensor([0, 0, 1, 1, 1])
    assert score("ece", outputs, targets) == pytest.approx((4 * 0.3 + 1 * 0.4) / 5)
    # A row before, and after, of which positions are left out, changes nothing.
    tokens = torch.tensor([[0, 0, -1, 1, 1, -1, 1]])
    with_others = torch.cat([outputs[:2], torch.tensor([[9.0, 0.0]])] * 2 + [outputs[4:]])[None]
    assert score("ece", with_others, tokens) == pytest.approx((4 * 0.3 + 1 * 0.4) / 5)


def test_positions_without_a_token_do_not_count():
    outputs, targets = drawn("tokens")
    cut = targets.clone()
    cut[:, 4:] = -1
    for name in ("token-accuracy", "log-loss", "perplexity", "ece"):
        expected = score(name, outputs[:, :4], targets[:, :4])
        assert score(name, outputs, cut) == pytest.approx(expected, rel=1e-6), name
        assert math.isnan(score(name, outputs, torch.full_like(targets, -1))), name


def test_places_that_torchs_losses_ignore_do_not_count():
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, 3, 4, 4, generator=rng)
    targets = torch.randint(3, (5, 4, 4), generator=rng)
    cut = targets.clone()
    cut[:, 1:] = -100
    every = torch.ones(1, 5, dtype=torch.bool)
    for each in (METRICS["accuracy"], CLASSIFICATION.metric):
        found = measure(each, outputs[None], cut[None], every)
        alone = measure(each, outputs[None, :, :, :1], targets[None, :, :1], every)
        torch.testing.assert_close(found, alone)
    expected = torch.nn.functional.cross_entropy(outputs, cut)  # all rows have as many
    torch.testing.assert_close(found[0], expected)


def test_where_rows_define_no_value_it_is_nan():
    outputs, _ = drawn("classes")
    alike = torch.ones(40, dtype=torch.int64)
    assert math.isnan(score("auc", outputs, alike))
    hits = score("accuracy", outputs, alike)
    assert score("balanced-accuracy", outputs, alike) == pytest.approx(hits)
    none = torch.zeros(40, 3)
    assert math.isnan(score("auc", none, none))
    assert math.isnan(score("f1", none - 1, none))
    assert math.isnan(score("r2", torch.zeros(4, 1), torch.ones(4)))


def test_equal_targets_have_no_r2_and_those_nearly_equal_scikit_learns():
    for value in [0.1, 14.62, -3e5]:
        with entry(value):
            rng = torch.Generator().manual_seed(0)
            for rows in (*range(1, 20), 1000):  # whose mean is not always their value
                alike = torch.full((rows,), value)
                assert math.isnan(score("r2", torch.zeros(rows, 1), alike)), rows
            y = value + 1e-6 * abs(value) * torch.randn(9, generator=rng)
            found = y + 1e-6 * torch.randn(9, generator=rng)
            expected = reference.r2_score(y.double().numpy(), found.double().numpy())
            assert score("r2", found[:, None], y) == pytest.approx(expected, rel=1e-9)


def test_rows_without_a_value_do_not_count_in_a_clients_mean():
    outputs, targets = drawn("tokens")
    cut = targets.clone()
    cut[::2] = -1
    every, known = torch.ones(1, 40, dtype=torch.bool), METRICS["token-accuracy"]
    found = measure(known, outputs[None], cut[None], every)
    hits = (outputs[1::2].argmax(-1) == targets[1::2]).double().mean()
    assert float(found) == pytest.approx(float(hits), rel=1e-6)
    broken = known._replace(partial=False)
    assert measure(broken, outputs[None], cut[None], every).isnan()


def test_values_lie_in_the_range_and_only_some_may_lack():
    for name in METRICS:
        with entry(name):
            known = METRICS[name]
            column = Column(name, known, known.partial)
            for kind in known.targets:
                outputs, targets = drawn(kind)
                for rows in (1, 2, 40):
                    for scale in (0.0, 1.0, -1e30):
                        outs, part = outputs[:rows, None] * scale, targets[:rows, None]
                        found = measure(known, outs, part, torch.ones(rows, 1, dtype=torch.bool))
                        assert column.impossible(found.tolist()) is None
            worst = torch.full_like(outputs, torch.nan)[None]
            found = measure(known, worst, targets[None], torch.ones(1, 40).bool())
            assert found.item() == known.worst


def test_better_outputs_have_better_values():
    for task in TASKS.values():
        _, targets = drawn(task.targets)
        if task.targets in ("classes", "tokens"):
            right = 9.0 * torch.nn.functional.one_hot(targets, 5).float()
        elif task.targets == "times":
            right = (2.5 - targets[:, :1]).expand(-1, 5)
        else:
            right = 9 * (2 * targets - 1) if task.targets == "labels" else targets
        for name, known in METRICS.items():
            if task.targets in known.targets:
                sign = 1 if known.better == "higher" else -1
                good, bad = score(name, right, targets), score(name, -right, targets)
                assert sign * good > sign * bad, (name, task.name)


@pytest.mark.parametrize("shape", ["one name", "known names", "unknown names", "one of them"])
def test_many_names_of_metrics_are_few_lookups(monkeypatch, shape):
    """A server may send 50,000: the first that is not known, or comes twice, ends it."""
    asked = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda *given, **how: asked.append(1) or [])
    numbers, known = range(50_000), list(METRICS)
    names = {
        "one name": ["accuracy" for _ in numbers],
        "known names": [known[number % len(known)] for number in numbers],
        "unknown names": [f"metric-{number}" for number in numbers],
        "one of them": ["accuracy", *(f"metric-{number}" for number in numbers)],
    }
    with pytest.raises(Refused, match="metrics must be "):
        small(metrics=",".join(names[shape]))
    assert len(asked) <= 1
    assert small(metrics="accuracy,f1").metrics == "accuracy,f1"
    assert len(asked) <= 1  # nothing is looked for where a name is known


def test_a_metric_that_the_task_does_not_have_is_refused():
    for task, metrics, words in [
        ("regression", "auc", "some of rmse, mae, r2 for task regression, got 'auc'"),
        ("classification", "auc,rmse,mae", "for task classification, got 'rmse,mae'"),
        ("next-token", "f1", "token-accuracy, log-loss, perplexity, ece for task next-token"),
    ]:
        with entry(task, metrics), pytest.raises(Refused, match=f"metrics must be .*{words}"):
            small(task=task, metrics=metrics)


def test_a_metric_of_a_user_is_for_any_task_unless_it_says_which():
    @metric()
    def mine(outputs, targets):
        return 0.0

    @metric(targets=("values",))
    def own(outputs, targets):
        return 0.0

    assert small(task="next-token", metrics="mine").metrics == "mine"
    assert small(task="regression", metrics="own,mine").metrics == "own,mine"
    with pytest.raises(Refused, match="for task multi-label, got 'own'"):
        small(task="multi-label", metrics="own")
