"""Metrics: what they are called, what they are computed from, and how they are shown."""

import pytest
import torch

from client.training.scoring import measure
from engram.metrics import LOSS, METRICS, Metric, metric, named

# Two clients with two and three rows that count, of two classes.
OUTPUTS = torch.tensor([[[2.0, 1.0], [0.0, 1.0], [9.0, 9.0]], [[1.0, 0.0], [0.0, 3.0], [0.0, 1.0]]])
TARGETS = torch.tensor([[0, 0, 0], [1, 1, 1]])
COUNTED = torch.tensor([[True, True, False], [True, True, True]])


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    for name, known in METRICS.items():
        monkeypatch.setitem(METRICS, name, known)
    yield
    for name in set(METRICS) - {"accuracy"}:
        del METRICS[name]


def test_accuracy_and_loss_by_hand():
    found = measure(METRICS["accuracy"], OUTPUTS, TARGETS, COUNTED)
    torch.testing.assert_close(found, torch.tensor([1 / 2, 2 / 3]))
    # -log of sigmoid(1) and sigmoid(-1); of sigmoid(-1), sigmoid(3), sigmoid(1).
    rows = [[0.3132617, 1.3132617], [1.3132617, 0.0485874, 0.3132617]]
    expected = torch.tensor([sum(values) / len(values) for values in rows])
    torch.testing.assert_close(measure(LOSS, OUTPUTS, TARGETS, COUNTED), expected)


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


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_outputs_that_are_not_finite_have_the_worst_value(bad):
    outputs = OUTPUTS.clone()
    outputs[0, 0, 1] = bad
    outputs[1, 2, 0] = bad
    assert measure(METRICS["accuracy"], outputs, TARGETS, COUNTED).tolist() == pytest.approx(
        [0, 1 / 3]
    )
    assert measure(LOSS, outputs, TARGETS, COUNTED).tolist() == [float("inf")] * 2
    whole = Metric("whole", lambda outputs, targets: 0.5, low=-3, high=1)
    assert measure(whole, outputs, TARGETS, COUNTED).tolist() == [-3, -3]


def test_padding_does_not_count_even_where_it_is_not_finite():
    outputs = OUTPUTS.clone()
    outputs[0, 2] = float("inf")
    assert measure(LOSS, outputs, TARGETS, COUNTED)[0].isfinite()
    whole = Metric("whole", lambda outputs, targets: outputs.isfinite().all().float())
    assert measure(whole, outputs, TARGETS, COUNTED).tolist() == [1, 1]


@pytest.mark.parametrize("name", ["loss", "clients", "train_loss", "Top", "_hidden"])
def test_a_name_that_cannot_be_a_column_is_refused(name):
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
    assert METRICS["accuracy"].in_words(0.81234) == "81.23"
    assert METRICS["accuracy"].in_words(0.81234, 1) == "81.2"
    assert (LOSS.in_words(1234.567), LOSS.in_words(None)) == ("1235", "-")
