"""Plots of a metric against rounds: one panel for few models, small multiples for many."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from engram.compare.colors import looks_of
from engram.compare.plots import draw_clients, draw_metric, row_counts
from engram.compare.report_rows import CLOCK
from engram.runs.run import Run
from engram.scoring.metrics import METRICS
from engram.studio.pages.figures import curves

ACCURACY = METRICS["accuracy"]


class Record(Run):
    """An evaluated run of two rounds; the common model is right half as often as what is served."""

    metrics, picks = (ACCURACY,), True

    def __init__(self, *served, common=0.5, tuned=None):
        self.served = served
        self.beside = {"-common": common} | ({} if tuned is None else {"-tuned": tuned})

    def rows(self):
        beside = {f"accuracy{which}": factor for which, factor in self.beside.items()}
        return [
            {"round": 5 * i, "accuracy": value} | {name: f * value for name, f in beside.items()}
            for i, value in enumerate(self.served)
        ]


def runs(*methods):
    return {
        method: [
            Record(
                first + 0.1 * i, first + 0.2 + 0.1 * i, tuned=1.1 if method == "fedavg" else None
            )
            for first in (0.2, 0.4)
        ]
        for i, method in enumerate(methods)
    }


def test_few_models_share_a_panel():
    (axes,) = draw_metric(runs("ditto", "apfl"), ACCURACY).axes
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["ditto", "apfl"]
    np.testing.assert_allclose(lines["apfl"].get_ydata(), [60])
    assert list(lines["apfl"].get_xdata()) == [5]  # at round 0 models are of different kinds
    assert len(axes.collections) == 2


def test_the_only_method_is_shown_with_its_common_model():
    (axes,) = draw_metric({"ditto": runs("ditto")["ditto"] * 4}, ACCURACY).axes
    assert [line.get_label() for line in axes.lines] == ["ditto", "global model"]
    assert axes.lines[1].get_linestyle() == "--"


def test_a_common_model_that_serves_clients_is_one_line():
    records = [Record(0.2, 0.4, common=1.0, tuned=1.5)]
    (axes,) = draw_metric({"fedavg": records}, ACCURACY).axes
    assert [line.get_label() for line in axes.lines] == ["fedavg", "fedavg + fine-tuning"]
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [30, 60])
    assert axes.lines[1].get_linestyle() == ":"


def test_many_models_have_a_panel_each_with_the_references_in_all():
    figure = draw_metric(runs("local", "fedavg", "ditto", "apfl"), ACCURACY)
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    assert list(panels) == ["local", "fedavg", "fedavg + fine-tuning", "ditto", "apfl"]
    own = panels["ditto"].lines[-1]
    np.testing.assert_allclose(own.get_ydata(), [70])
    (band,) = panels["ditto"].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((60, 80))
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    references = ["local", "fedavg", "fedavg + fine-tuning"]
    first = "mean over clients, band: lowest to highest of 2 seeds"
    assert told == [first, *references, "means of the others"]
    assert figure.get_supxlabel() == "communication round"


def test_every_figure_of_some_methods_has_the_same_colors():
    alone = draw_metric(runs("apfl"), ACCURACY).axes[0].lines
    assert alone[0].get_color() == looks_of(["apfl"])["apfl"].color
    for methods in (["ditto", "apfl"], ["local", "fedavg", "apfl", "ditto"]):
        looks = looks_of(methods)
        page = {trace.name: trace for trace in curves(runs(*methods), ACCURACY).data}
        assert {m: page[m].line.color for m in methods} == {m: looks[m].color for m in methods}
    (axes,) = draw_metric(runs("ditto", "apfl"), ACCURACY).axes
    colors = [look.color for look in looks_of(["ditto", "apfl"]).values()]
    assert [line.get_color() for line in axes.lines] == colors
    many = draw_metric(runs(*methods), ACCURACY)
    (panel,) = [axes for axes in many.axes if axes.get_title() == "apfl"]
    assert panel.lines[-1].get_color() == looks["apfl"].color


def test_the_page_leaves_round_0_out_side_by_side_and_shows_it_of_one_method():
    both = {trace.name: trace for trace in curves(runs("local", "ditto"), ACCURACY).data}
    assert list(both["ditto"].x) == [5]
    (alone, *_) = curves({"ditto": runs("ditto")["ditto"][:1]}, ACCURACY).data
    assert list(alone.x) == [0, 5]


class Finished(Record):
    """A finished run of 12 clients, with a score of each of three models."""

    clients, names = 12, {}
    picked = Run.picked

    @property
    def results(self):
        scores = {f"accuracy{end}": [0.5] * 12 for end in ("", "-common", "-tuned")}
        return {"clients": {"ids": [*range(12)], **scores}}


def test_what_is_said_above_the_clients_is_within_the_figure():
    for narrow, size in [(False, (7.5, 4.5)), (True, (3.5, 2.7))]:
        figure = draw_clients({"ditto": [Finished(0.2)]}, ACCURACY, narrow=narrow)
        figure.set_size_inches(*size)
        FigureCanvasAgg(figure).draw()
        (told,) = [text for text in figure.texts if "whiskers" in text.get_text()]
        box, whole = told.get_window_extent(), figure.bbox
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1
        assert box.y1 <= whole.y1


def test_a_metric_over_simulated_seconds_is_at_their_mean_over_seeds():
    class Timed(Record):
        def rows(self):
            first, *others = super().rows()
            pace = self.served[0]
            return [first, *(row | {CLOCK: pace * row["round"]} for row in others)]

    (axes,) = draw_metric(
        {"fedavg": [Timed(0.2, 0.4), Timed(0.4, 0.6)]}, ACCURACY, against=CLOCK
    ).axes
    line = next(line for line in axes.lines if line.get_label() == "fedavg")
    assert line.get_xdata() == pytest.approx([0.0, 0.3 * 5])
    assert axes.get_xlabel() == "simulated seconds"


def test_rows_with_a_class_at_each_place_are_counted_as_rows():
    """The board took such classes for one of each row, and could not show who holds which."""
    part = SimpleNamespace(y=torch.zeros((4, 3), dtype=torch.int64), rows=[[0, 1, 3], [2]])
    found = row_counts(SimpleNamespace(train=part, validation=None, test=part, outputs=5))
    counts = {name: each.tolist() for name, each in found.items()}
    assert counts == {"training": [[3], [1]], "test": [[3], [1]]}
