"""Robust centers: by hand, against Flower's strategies, and against arbitrary minorities."""

from functools import partial

import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg, Krum
from hypothesis import given
from hypothesis import strategies as st

from engram.guards.robust import krum, median, trimmed_mean
from engram.link.flower import local_run
from engram.wire.wire import to_params, to_record
from tests.support import assert_same, draw
from tests.tables import entry

LINE = [8.0, 1.0, 100.0, 4.0, 2.0]


def mean(sent):
    return {name: torch.stack([m[name] for m in sent]).mean(0) for name in sent[0]}


def points(*values):
    return [{"w": torch.tensor([float(v)], dtype=torch.float64)} for v in values]


def models(count, seed=0, dtype=torch.float32):
    """Models of two leaves, none like another."""
    drawn = [{"a": draw(seed + i, 3, 2), "b": draw(seed + 100 + i, 4)} for i in range(count)]
    return [{name: leaf.to(dtype) for name, leaf in model.items()} for model in drawn]


# --- By hand ---------------------------------------------------------------------------------


def test_trimmed_mean():
    for values, cut, expected in [
        (LINE, 0, 23.0),
        (LINE, 1, 14 / 3),  # (2 + 4 + 8) / 3
        (LINE, 2, 4.0),
        (LINE, 9, 4.0),  # nothing would be left: the middle
        ([8.0, 1.0, 4.0, 2.0], 1, 3.0),
        ([8.0, 1.0, 4.0, 2.0], 2, 3.0),  # the middle two
        ([5.0], 1, 5.0),
    ]:
        with entry(values, cut):
            assert trimmed_mean(points(*values), cut)["w"].item() == pytest.approx(
                expected, abs=1e-12
            )


def test_median_takes_each_coordinate_apart():
    rows = [[1.0, 9.0], [2.0, 7.0], [6.0, 8.0]]
    three = [{"w": torch.tensor(row, dtype=torch.float64)} for row in rows]
    assert median(three)["w"].tolist() == [2.0, 8.0]  # a model that nobody sent
    assert median(points(8, 1, 4, 2))["w"].item() == 3.0


def test_krum():
    for values, malicious, expected in [
        # Two nearest: 0 has 1 + 9, 1 has 1 + 4, 3 has 4 + 9, 7 has 16 + 36.
        ([7, 0, 100, 3, 1], 1, 1),
        # Three nearest: 0 has 1 + 9 + 49, 1 has 1 + 4 + 36, 3 has 4 + 9 + 16.
        ([7, 0, 100, 3, 1], 0, 3),
        # One nearest at least: 0 and 1 have 1, and 0 comes first.
        ([7, 0, 1], 5, 0),
        # 1 and 10 have 1 + 81, and 1 comes first, or 10 does.
        ([0, 1, 10, 11], 0, 1),
        ([0, 10, 1, 11], 0, 10),
        ([5], 0, 5),
    ]:
        with entry(values, malicious):
            assert krum(points(*values), malicious)["w"].item() == expected


def test_krum_counts_all_leaves():
    # Two nearest: (0, 0) has 2 + 9, (3, 0) and (0, 3) have 5 + 9, (1, 1) has 2 + 5. In either
    # leaf alone the first would do best.
    plane = [(0.0, 0.0), (3.0, 0.0), (0.0, 3.0), (1.0, 1.0)]
    sent = [{"a": torch.tensor([x]), "b": torch.tensor([y])} for x, y in plane]
    assert krum(sent, 0) is sent[3]


# --- Against Flower --------------------------------------------------------------------------


def flowers(strategy, sent):
    local_run()
    query = Message(RecordDict(), dst_node_id=1, message_type="train")
    metrics = MetricRecord({"num-examples": 7})
    replies = [
        Message(RecordDict({"arrays": to_record(m), "metrics": metrics}), reply_to=query)
        for m in sent
    ]
    return to_params(strategy.aggregate_train(1, replies)[0])


def test_median_and_trimmed_mean_are_flowers():
    for count in [1, 2, 5, 8, 11]:
        with entry(count):
            sent = models(count)
            assert_same(median(sent), flowers(FedMedian(), sent), atol=1e-6)
            for beta in (0.0, 0.2, 0.45):
                cut = int(beta * count)  # Flower's share of those that replied
                assert_same(
                    trimmed_mean(sent, cut), flowers(FedTrimmedAvg(beta=beta), sent), atol=1e-6
                )


def test_krum_is_flowers():
    # Where it looks at two neighbours or more. By one neighbour the two nearest models are equal,
    # and rounding says which Flower takes.
    for count, malicious in [(1, 0), (4, 0), (5, 1), (8, 0), (8, 3), (11, 3)]:
        with entry(count, malicious):
            for seed in range(5):
                sent = models(count, seed=1000 * seed)
                picked = flowers(Krum(num_malicious_nodes=malicious), sent)
                assert_same(krum(sent, malicious), picked)


# --- Minorities ------------------------------------------------------------------------------

HONEST = st.lists(st.floats(-9, 9), min_size=5, max_size=9)
ANYTHING = st.lists(st.floats(-3e38, 3e38), min_size=2, max_size=2)
CENTERS = {"median": median, "trimmed": partial(trimmed_mean, cut=2)}


@pytest.mark.parametrize("name", CENTERS)
@given(HONEST, ANYTHING)
def test_two_that_lie_leave_the_range_of_the_others(name, honest, lies):
    center = CENTERS[name](points(*honest, *lies))["w"].item()
    assert min(honest) - 1e-9 <= center <= max(honest) + 1e-9


@given(HONEST.filter(lambda values: len(values) >= 5), ANYTHING)
def test_two_that_lie_make_krum_pick_no_distant_model(honest, lies):
    # Blanchard et al., Sec. 4: with n = honest + 2 and 2 * 2 + 2 < n, an honest model's score is
    # at most (n - 4) D^2, D the width of the honest ones; a liar's has an honest one among its
    # n - 4 > 1 nearest.
    picked = krum(points(*lies, *honest), 2)["w"].item()
    width, terms = max(honest) - min(honest), len(honest) - 2
    assert min(abs(picked - value) for value in honest) <= width * terms**0.5 + 1e-6


def test_one_that_lies_ruins_the_mean_and_nothing_else():
    sent = [*models(6), {"a": torch.full((3, 2), 3e38), "b": torch.full((4,), -3e38)}]
    ruined = mean(sent)
    assert ruined["a"].abs().min() > 1e37
    for center in (median, partial(trimmed_mean, cut=1), partial(krum, malicious=1)):
        assert all(leaf.abs().max() < 4 for leaf in center(sent).values())


# --- Properties ------------------------------------------------------------------------------

ALL = [median, partial(trimmed_mean, cut=1), partial(krum, malicious=1)]


def test_order_does_not_matter_and_shifts_pass_through():
    for center in ALL:
        with entry(center):
            sent = models(6, dtype=torch.float64)
            shift = models(1, seed=77, dtype=torch.float64)[0]
            shifted = [{name: leaf + shift[name] for name, leaf in m.items()} for m in sent]
            expected = {name: leaf + shift[name] for name, leaf in center(sent).items()}
            assert_same(center(shifted[::-1]), expected, atol=1e-12)


def test_equal_models_are_their_own_center_and_nothing_is_written_to():
    for center in ALL:
        with entry(center):
            sent = models(1) * 6
            copy = {name: leaf.clone() for name, leaf in sent[0].items()}
            assert_same(center(sent), copy, atol=1e-6)
            assert_same(sent[0], copy)
            assert {name: leaf.dtype for name, leaf in center(sent).items()} == {
                name: leaf.dtype for name, leaf in copy.items()
            }


def test_cutting_nothing_is_the_mean():
    sent = models(7)
    assert_same(trimmed_mean(sent, 0), mean(sent), atol=1e-6)


def test_a_parameter_that_is_a_single_number_has_a_center():
    models = [{"scale": torch.tensor(x)} for x in (1.0, 9.0, 2.0)]
    assert_same(median(models), {"scale": torch.tensor(2.0)})
