"""Coefficients of tasks in tables and in the picture of who differs in what."""

import io

import matplotlib.image as plt
import numpy as np
import pytest

from engram.tables.adaptive_models import AdaptiveRegressor
from engram.tables.regressor import MolarRegressor
from engram.tables.studies.coefficients import (
    coefficients,
    draw_heterogeneity,
    heterogeneity,
    task_table,
    unsure,
)
from tests.samples import sampled
from tests.tables.studies.test_table import COLUMNS, NAMES, frame


def fitted(c=1.0, kind="shared"):
    data = frame()
    model = MolarRegressor(undetermined="shared", c=c)
    return coefficients(model.fit(data[COLUMNS], data["pressure"], data["hospital"]), 0.95, kind)


def adapted():
    data = frame()
    model = AdaptiveRegressor().fit(data[COLUMNS], data["pressure"], data["hospital"])
    return coefficients(model, 0.95)


@pytest.mark.parametrize("found", [fitted(), adapted()])
def test_heterogeneity_shows_every_difference_of_the_table_per_standard_deviation(found):
    deviations = frame()[COLUMNS].to_numpy().std(axis=0)
    values = heterogeneity(found, deviations)
    assert found.differs[3, 1]
    np.testing.assert_array_equal(values > 0, found.differs)
    gap = abs(found.own[3, 1] - found.shared[1])  # in oslo: 26
    assert gap == pytest.approx(26, abs=3)
    assert values[3, 1] == pytest.approx(gap * deviations[1])
    own = np.where(np.arange(4) == 0, np.nan, found.own)
    unknown = heterogeneity(found._replace(own=own), deviations)
    np.testing.assert_array_equal(np.isnan(unknown[:, 0]), ~found.differs[:, 0])


@pytest.mark.usefixtures("drawn")
def test_the_least_difference_is_not_white():
    found = fitted()
    values = np.where(found.differs, 100.0, 0.0)
    values[0, 0] = 1e-3  # beside others of 100
    image = plt.imread(io.BytesIO(draw_heterogeneity(values, found, "mm")))
    light = image[..., :3].min(axis=2)
    white = draw_heterogeneity(np.where(values == 1e-3, 0.0, values), found, "mm")
    other = plt.imread(io.BytesIO(white))[..., :3].min(axis=2)
    cell = (other > 0.999) & (light < 0.999)
    assert light[cell].mean() < 0.85


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("tasks", sampled([8, 400], [8]))
def test_a_picture_of_nothing_and_of_many(tasks):
    found = fitted()._replace(tasks=list(range(tasks)))
    for values in (np.zeros((tasks, 3)), np.full((tasks, 3), np.nan), np.eye(tasks, 3)):
        assert draw_heterogeneity(values, found, "mm").startswith(b"\x89PNG")


def test_where_nothing_differs_it_says_so():
    found = fitted(c=1e9)
    assert not found.differs.any()
    many = {name: np.tile(getattr(found, name), (3, 1)) for name in ("coef", "low", "high", "own")}
    wide = found._replace(tasks=NAMES * 3, differs=np.tile(found.differs, (3, 1)), **many)
    first, _, kind, left = task_table(wide)
    assert "they cover few" in kind
    assert first == "No task differs.\n"
    assert left.startswith("All 96 coefficients are in coefficients.csv; 96 that are left out")


def test_the_threshold_is_told_in_standard_errors():
    # Of 8 equal hospitals and 4 coefficients: gamma_m = c ln(min(8, 4)) sigma_m.
    found = fitted(c=3.0)
    np.testing.assert_allclose(found.reach, 3 * np.log(4))
    gaps = np.abs(found.own - found.shared)[:, :3] / found.error[:, :3]
    np.testing.assert_array_equal(found.differs, gaps > 3 * np.log(4))
    assert "A task differs from 4.2 standard errors on" in str(task_table(found))
    none = str(task_table(fitted(c=np.inf)))
    assert "By this --c no task differs" in none


def test_coefficients_outside_their_intervals_are_marked():
    # By a threshold beyond all differences, oslo's dose is the shared one; its interval is not.
    found = fitted(c=1e9)
    assert np.argwhere(unsure(found)).tolist() == [[3, 1]]
    assert not unsure(fitted())[3, 1]
