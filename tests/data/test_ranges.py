"""Inputs in other units are noticed, and ordinary rows are not."""

from functools import partial

import numpy as np
import torch

from engram.data.ranges import SIZE, Range, far_away, inputs_in, ranges_of
from engram.data.schema.columns import Column, Schema
from tests.samples import entry

HEIGHT = [Range("height", 1.5, 1.9)]


def among(x, schema=None):
    return inputs_in(torch.as_tensor(x), schema)


def test_a_range_leaves_out_a_tenth_on_either_side_and_is_rounded_outward():
    values = np.arange(101) / 100 + 3.0004  # its quantiles are 3.1004 and 3.9004
    assert ranges_of({"x": values}) == [Range("x", 3.1, 3.91)]
    assert ranges_of({"year": np.arange(1990.0, 2031.0)}) == [Range("year", 1994, 2026)]
    outlier = np.append(values, 1e12)
    assert ranges_of({"x": outlier})[0].high < 4


def test_a_single_rows_values_are_not_told():
    assert ranges_of({"x": np.arange(9.0)}) == []
    assert ranges_of({"x": np.full(50, 7.0)}) == []  # a constant has no width to be far from
    assert len(ranges_of({"x": np.arange(10.0)})) == 1


MEDIANS = [
    ([1.7, 1.8], False),
    ([0.9], False),  # a child
    ([2.9], False),  # three widths away: 1.9 + 3 * 0.4 = 3.1
    ([170.0], True),
    ([170.0, 1.7, 1.7], False),  # one wrong cell
    ([170.0, 165.0, 1.7], True),
    ([-0.5], True),
    ([], False),
]


def test_the_median_is_compared():
    for values, far in MEDIANS:
        with entry(values, far):
            assert bool(far_away(HEIGHT, {"height": np.array(values)})) == far


def test_the_warning_names_the_numbers():
    (told,) = far_away(HEIGHT, {"height": np.array([171.23]), "weight": np.array([1e9])})
    assert told == "height: 171 against 1.5 to 1.9"


def test_numbers_of_one_sign_may_not_be_of_another_order():
    dollars = [Range("paid", 10.0, 900.0)]
    assert far_away(dollars, {"paid": np.full(5, 0.09)})
    assert not far_away(dollars, {"paid": np.full(4, 0.09)})  # so few may be small by chance
    assert not far_away(dollars, {"paid": np.full(5, 1.5)})
    assert far_away([Range("debt", -900.0, -10.0)], {"debt": np.full(5, -0.09)})
    assert not far_away([Range("gain", -10.0, 900.0)], {"gain": np.full(5, -0.09)})


def test_rows_of_the_same_kind_are_seldom_far():
    for kind in ("normal", "uniform", "exponential", "lognormal", "standard_t"):
        draw = getattr(np.random.default_rng(0), kind)
        draw = partial(draw, 3) if kind == "standard_t" else draw
        ranges = ranges_of({"x": draw(size=200)})
        for rows, most in ((1, 0.01), (5, 1e-3), (30, 1e-3)):
            found = [far_away(ranges, {"x": draw(size=rows)}) for _ in range(2000)]
            with entry(kind, rows):
                assert sum(map(bool, found)) <= most * len(found)


def test_images_are_one_input_and_may_be_darker_or_brighter():
    rng = np.random.default_rng(0)
    images = rng.random((40, 1, 8, 8))
    inputs = among(images)
    assert list(inputs) == [SIZE]
    ranges = ranges_of(inputs)
    for factor in (0.2, 0.5, 1, 1.8):
        assert not far_away(ranges, among(factor * images[:1]))
    for factor in (1 / 255, 255):
        assert far_away(ranges, among(factor * images[:1]))


def test_columns_of_text_and_missing_values_are_left_out():
    columns = Column("age"), Column("sex", "category", ("f", "m")), Column("dose")
    x = np.array([[30, 0, 1, 0, 0, 5, 0], [0, 1, 0, 1, 0, 6, 0], [50, 0, 0, 1, 0, 0, 1.0]])
    found = among(x, Schema(columns, "indicator"))
    assert {name: values.tolist() for name, values in found.items()} == {
        "age": [30, 50],  # the second is missing, and 0 stands for it
        "dose": [5, 6],
    }
    plain = among(np.array([[30.0, 0, 1, 5], [40, 1, 0, np.nan]]), Schema(columns))
    assert {name: values.tolist() for name, values in plain.items()} == {
        "age": [30, 40],
        "dose": [5],
    }


def test_tokens_have_no_units_and_several_inputs_have_names_of_their_own():
    x = {"tokens": torch.zeros(4, 3, dtype=torch.int64), "image": torch.ones(4, 2, 2)}
    assert list(inputs_in(x, None)) == [f"x1 {SIZE}"]
    assert list(among(np.zeros((4, 2)))) == ["column 0", "column 1"]
    named = Schema.of_numbers(("age", "dose"))
    assert list(among(np.zeros((4, 2)), named)) == ["age", "dose"]
