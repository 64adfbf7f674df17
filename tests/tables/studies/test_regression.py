"""`engram reproduce molar-regression`: trials against tasks fitted whole, tables."""

import json

import numpy as np
import pytest

from engram.tables.simulation import sparse_parameters
from engram.tables.site import Rows
from engram.tables.studies import regression
from engram.tables.studies.regression_trials import (
    FIGURES,
    METHODS,
    SIGMA,
    Design,
    Point,
    errors,
    gather,
    run_trial,
)
from tests.studies.support import reproduce

COMPARED = FIGURES[2].methods
POINT = Point("n", "", 60, 60, 4, 2, 6)
SMALL = {
    2: Design((POINT, POINT._replace(x=90, size=90), POINT._replace(panel="s", x=4)), COMPARED),
    3: Design(
        tuple(Point("rho = 0.5", f"M = {m}", d, 50, m, d // 2, d) for m in (3, 5) for d in (2, 6)),
        ("ols", "molar"),
    ),
    8: Design((POINT, POINT._replace(panel="M", x=3, tasks=3)), COMPARED, disparate=True),
}


def trial(design, number=0):
    return run_trial(2, design, number, lambda done, total: None)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(regression, "FIGURES", SMALL)


# --- Trials ----------------------------------------------------------------------------------


def test_a_trials_points_are_what_its_rows_give_when_they_are_fitted_whole():
    # By hand: task m draws n rows of d + 1 normals, block after block; the first n, the first d.
    design = Design(
        (
            Point("n", "", 40, 40, 3, 2, 5),
            Point("n", "", 100, 100, 2, 3, 5),
            Point("d", "", 4, 100, 2, 1, 4),
        ),
        tuple(METHODS),
    )
    found = trial(design, 7)
    drawn = []
    for m in range(3):
        rng = np.random.default_rng([201, 7, m])
        drawn.append(np.vstack([rng.standard_normal((n, 6)) for n in (40, 60)]))
    for row, point in zip(found, design.points, strict=True):
        rng = np.random.default_rng([202, 7, point.dim])
        truth = sparse_parameters(rng, point.tasks, point.dim, point.differing)
        tasks = []
        for block, beta in zip(drawn, truth, strict=False):
            x, noise = block[: point.size, : point.dim], block[: point.size, 5]
            tasks.append(Rows(x, x @ beta + SIGMA * noise))
        expected = errors(gather(tasks), truth, design.methods)
        assert row["errors"] == pytest.approx(expected, rel=1e-5)
        assert expected["molar-1"] == expected["molar"]
        # c = 2: a coefficient within 2 ln(min(M, d)) standard errors of the median is the median.
        own = np.array([np.linalg.lstsq(task.x, task.y)[0] for task in tasks])
        freedom = point.size - point.dim
        sigma = [np.sum((t.y - t.x @ b) ** 2) / freedom for t, b in zip(tasks, own, strict=True)]
        root = [np.sqrt(np.diag(np.linalg.inv(t.x.T @ t.x))) for t in tasks]
        radius = 2 * np.log(min(point.tasks, point.dim)) * np.sqrt(sigma)[:, None] * root
        center = gather(tasks).shared.coef
        near = np.where(np.abs(own - center) <= radius, center, own)
        by_hand = np.abs(near - truth).sum(axis=1).mean()
        assert row["errors"]["molar-2"] == pytest.approx(by_hand, rel=1e-5)


def test_figures_vary_one_quantity_in_each_panel():
    for number, s in [(2, 20), (7, 20), (8, 20), (9, 40)]:
        design = FIGURES[number]
        assert design.disparate == (number == 8)
        for p in design.points:
            varied = {"n": p.size, "M": p.tasks, "s": p.differing}
            assert p.x == varied[p.panel]
            assert varied == {"n": 5000, "M": 30, "s": s} | {p.panel: p.x}
            assert p.dim == 300
    for p in FIGURES[3].points:
        assert (p.x, p.size, p.series) == (p.dim, 10_000, f"M = {p.tasks}")
        assert p.panel == f"rho = {p.differing / p.dim:g}"


# --- Tables ----------------------------------------------------------------------------------


def test_a_summary_by_hand():
    fixed = {"figure": 2, **POINT._asdict()}
    measured = [(2.0, 1.0), (3.0, 1.5), (7.0, 0.5)]
    done = [
        {**fixed, "trial": t, "errors": {"ols": ols, "molar": molar}}
        for t, (ols, molar) in enumerate(measured)
    ]
    ols, molar = regression.summarize(done)
    assert (ols["error"], ols["of-ols"], ols["trials"]) == (4.0, 1.0, 3)
    # Deviations of -2, -1 and 3 from 4: their variance is 14 / 2, over three trials.
    assert ols["standard-error"] == pytest.approx((7 / 3) ** 0.5)
    assert (molar["error"], molar["of-ols"]) == (1.0, 0.25)
    assert all(row["standard-error"] is None for row in regression.summarize(done[:1]))


@pytest.mark.full
@pytest.mark.usefixtures("drawn")
def test_it_gives_tables_and_figures(small, tmp_path):
    out = tmp_path / "run"
    result = reproduce("molar-regression", "--trials", 2, "--json", out=out)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found == json.loads((out / "results.json").read_text())
    assert len(found["rows"]) == 3 * 6 + 4 * 2 + 2 * 6
    for row in found["rows"]:
        assert row["error"] > 0
        assert row["standard-error"] > 0
        assert (row["of-ols"] == 1) == (row["method"] == "ols")
    for number in (2, 3, 8):
        assert f"Figure {number}" in result.stdout
        assert (out / f"figure-{number}.png").read_bytes().startswith(b"\x89PNG")
    for name in (*COMPARED, "M = 3", "M = 5"):
        assert (METHODS[name].title if name in METHODS else name) in result.stdout
    first = json.loads((out / "figure-2-trial-1.json").read_text())
    assert [row["errors"] for row in first] == [row["errors"] for row in trial(SMALL[2], 1)]


def test_figures_may_be_chosen(small, tmp_path):
    out = tmp_path / "run"
    words = ["--figure", 3, "--trials", 1]
    assert reproduce("molar-regression", *words, out=out).exit_code == 0
    written = {"plan.json", "figure-3-trial-0.json", "figure-3.png", "results.json"}
    assert {path.name for path in out.iterdir()} == written
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert all(row["standard-error"] is None for row in rows)
