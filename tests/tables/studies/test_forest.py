"""Forest plots and the table of effects over sites."""

import io

import numpy as np
import pytest
from rich.console import Console

from engram.tables.effects.meta_analysis import meta_analysis
from engram.tables.studies.forest import draw_forest, effects_table


def test_a_forest_plot_and_its_table():
    coef, error = np.array([0.2, 0.6, -0.1, 0.0]), np.array([0.1, 0.2, 0.4, np.inf])
    sites = ["bern", "graz", "lyon", "oslo"]
    one = meta_analysis("dose [mg]", sites, coef, error, ratio="odds ratio")
    figure = draw_forest([one, one._replace(name="$age")])
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == [
        *sites,
        "fixed effects",
        "random effects",
    ]
    assert (right.get_title(), left.get_xscale()) == ("$age", "log")
    lines = [line.get_xydata() for line in left.get_lines()]
    bars = [line for line in lines if len(line) == 2 and line[0, 1] == line[1, 1]]
    assert [bar[0, 1] for bar in bars] == [0, 1, 2, 4, 5]  # oslo has no estimate
    half = 1.959964 * 0.2
    assert bars[1][:, 0] == pytest.approx(np.exp([0.6 - half, 0.6 + half]), rel=1e-6)
    assert bars[3][:, 0] == pytest.approx(np.exp([limits[0] for limits in one.effects.limits]))
    sides = [line.get_markersize() for line in left.get_lines() if line.get_marker() == "s"]
    assert sides == [10, 5, 2.5]  # the side is as 1 / error
    console = Console(file=io.StringIO(), width=200)
    console.print(effects_table([one]))
    text = console.file.getvalue()
    fixed = [
        f"{np.exp(value):.4g}"
        for value in (one.effects.coef[0], *[limits[0] for limits in one.effects.limits])
    ]
    assert f"{fixed[0]} ({fixed[1]} .. {fixed[2]})" in text
    assert "odds ratios" in text
