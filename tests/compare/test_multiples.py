"""Small multiples: what each panel contains."""

import itertools

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from engram.compare.panel_plots import Curve, curve_of, draw_differences, draw_multiples
from tests.samples import entry

X = [1, 50, 100]
LABELS = ("round", "regret")


def curves(count, runs=3):
    rng = np.random.default_rng(0)
    return [
        curve_of(f"policy {i}", X, rng.uniform(1 + i, 2 + i, size=(runs, 3))) for i in range(count)
    ]


def panels(figure):
    return [axes for axes in figure.axes if axes.get_title()]


def lines(axes, color):
    return [line for line in axes.lines if to_rgb(line.get_color()) == to_rgb(color)]


def corners(band):
    return band.get_paths()[0].vertices


def test_each_curve_has_a_panel_with_its_own_line_and_band():
    for count in (1, 3, 13):
        check_panels(curves(count))


def check_panels(given):
    found = panels(draw_multiples({"": given}, LABELS, own="mean"))
    assert [axes.get_title() for axes in found] == [curve.title for curve in given]
    for axes, curve in zip(found, given, strict=True):
        (own,) = lines(axes, "tab:blue")
        np.testing.assert_array_equal(own.get_ydata(), curve.mean)
        (band,) = axes.collections
        assert {tuple(c) for c in zip(X, curve.low, strict=True)} <= set(map(tuple, corners(band)))
        assert {tuple(c) for c in zip(X, curve.high, strict=True)} <= set(map(tuple, corners(band)))
        others = [line.get_ydata().tolist() for line in lines(axes, "0.65")]
        assert others == [each.mean.tolist() for each in given]
        assert own.get_zorder() > max(line.get_zorder() for line in lines(axes, "0.65"))


def test_curves_that_are_alike_are_all_seen():
    """On one another, only the last of them could be."""
    alike = [Curve(f"policy {i}", X, np.ones(3)) for i in range(5)]
    found = panels(draw_multiples({"": alike}, LABELS, own="mean"))
    assert [len(lines(axes, "tab:blue")) for axes in found] == [1] * 5


def test_references_are_marked_in_every_panel_and_in_the_legend():
    given = curves(4)
    marked = ["policy 3", "policy 0"]
    figure = draw_multiples({"": given}, LABELS, own="its mean", marked=marked)
    for axes in panels(figure):
        last, first = sorted(lines(axes, "black"), key=lambda line: -line.get_ydata()[0])
        assert first.get_ydata().tolist() == given[0].mean.tolist()
        assert last.get_ydata().tolist() == given[3].mean.tolist()
        assert first.get_linestyle() != last.get_linestyle() != "-"
    (legend,) = figure.legends
    told = [text.get_text() for text in legend.get_texts()]
    assert told == ["its mean", *marked, "means of the others"]


def test_groups_are_rows_with_an_axis_of_their_own():
    groups = {", few": curves(3), ", many": [c._replace(mean=9 * c.mean) for c in curves(3)]}
    figure = draw_multiples(groups, LABELS, own="mean")
    few, many = panels(figure)[:3], panels(figure)[3:]
    assert [axes.get_title() for axes in many] == [f"policy {i}, many" for i in range(3)]
    assert len({axes.get_ylim() for axes in few}) == len({axes.get_ylim() for axes in many}) == 1
    assert few[0].get_ylim() != many[0].get_ylim()


def test_a_logarithmic_axis_begins_after_a_tenth():
    rising = [Curve("slow", [1, 10, 100], np.array([0.0, 2.0, 20.0]))]
    (axes,) = panels(draw_multiples({"": rising}, LABELS, own="mean", log=True))
    assert (axes.get_yscale(), axes.get_ylim()[0]) == ("log", 2.0)


def test_a_difference_has_color_where_its_interval_excludes_zero():
    mean, half = np.array([-3.0, -3.0, 0.0, 3.0, 3.0]), np.ones(5)
    gap = Curve("gap", [1, 2, 3, 4, 5], mean, mean - half, mean + half)
    (axes,) = panels(draw_differences({"": [gap]}, LABELS, kind="interval"))
    bands = {band.get_facecolor()[0][:3].tobytes(): band for band in axes.collections}
    ends = {
        color: (corners(bands[np.array(to_rgb(color)).tobytes()])[:, 0]).tolist()
        for color in ("0.45", "tab:green", "tab:red")
    }
    expected = {"0.45": (1, 5), "tab:green": (1, 2), "tab:red": (4, 5)}
    assert {color: (min(x), max(x)) for color, x in ends.items()} == expected


def test_ticks_end_where_the_rounds_do():
    for x, ticks in [
        ([10, 40], [0, 10, 20, 30, 40]),
        ([0, 1], [0, 1]),
        ([5, 37], [0, 10, 20, 30, 37]),
        ([3], [0, 1, 2, 3]),
    ]:
        with entry(x, ticks):
            curve = Curve("one", x, np.ones(len(x)))
            (axes,) = panels(draw_multiples({"": [curve]}, LABELS, own="mean"))
            assert axes.get_xticks().tolist() == ticks


def test_titles_do_not_run_into_each_other():
    long = [
        c._replace(title=f"fedadagrad, eta=0.{i} + fine-tuning") for i, c in enumerate(curves(3))
    ]
    figure = draw_multiples({"": long}, LABELS, own="mean")
    FigureCanvasAgg(figure).draw()
    ends = [axes.title.get_window_extent() for axes in panels(figure)]
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(ends))


def test_one_run_has_no_band():
    (curve,) = curves(1, runs=1)
    assert curve.low is None
    assert curve.high is None
    (axes,) = panels(draw_multiples({"": [curve]}, LABELS, own="mean"))
    assert not axes.collections
    (axes,) = panels(draw_differences({"": [curve]}, LABELS, kind="interval"))
    assert not axes.collections
