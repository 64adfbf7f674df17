"""Event tables and curves: equal to R's survival, and to pooled rows on the joined grid."""

import json
from pathlib import Path

import numpy as np
import pytest

from engram.scoring import brier_errors, concordant_pairs
from engram.tables.survival.curves import kaplan_meier, log_rank, nelson_aalen
from engram.tables.survival.event_tables import SiteTimes, collect_tables, join_cells

R = {
    name: np.array(values)
    for name, values in json.loads(Path(__file__).with_name("curves.json").read_bytes()).items()
}


def tables(*groups, entry=None, least=1):
    """Tables of groups of R's rows on one grid of periods."""
    sites = [
        SiteTimes(
            np.arange(1.0, 13.0),
            R["times"][some],
            R["events"][some] == 1,
            None if entry is None else entry[some],
            least=least,
        )
        for some in groups
    ]
    grid = join_cells(sites)
    return [site.table(grid) for site in sites]


def equal(found, *names):
    expected = R[names[0]] if len(names) == 1 else [R[name] for name in names]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_curves_and_log_rank_tests_are_those_of_r():
    (table,) = tables(np.full(137, True))
    curve, hazard = kaplan_meier(table), nelson_aalen(table)
    equal(curve.ends, "at")
    equal(curve.survival, "survival")
    equal(curve.greenwood, "greenwood")
    equal(curve.interval(), "low", "high")
    equal(hazard.hazard, "hazard")
    equal(hazard.variance, "hazard_variance")
    mean = curve.restricted_mean(5.0)
    error = (mean.high - mean.low) / 2 / 1.959963984540054
    equal([mean.mean, error], "rmean")
    low, high = hazard.interval()
    assert ((low < hazard.hazard) & (hazard.hazard < high)).all()
    np.testing.assert_allclose(np.log(high / hazard.hazard), np.log(hazard.hazard / low))

    (late,) = tables(np.full(137, True), entry=R["entry"])
    curve = kaplan_meier(late)
    equal(curve.ends, "late_at")
    equal(curve.survival, "late_survival")
    equal(curve.greenwood, "late_greenwood")

    kinds = [R["cell"] == k for k in (1, 2, 3, 4)]
    of_four = log_rank([tables(*kinds)])
    equal([*of_four.observed, *of_four.expected, of_four.statistic], "ranks")
    assert of_four.freedom == 3
    arms = [tables(*(kind & (R["trt"] == arm) for arm in (1, 2))) for kind in kinds]
    within = log_rank(arms)
    equal([*within.observed, *within.expected, within.statistic], "within")
    assert within.p_value == pytest.approx(0.353798, abs=1e-6)
    with pytest.raises(ValueError, match="groups"):
        log_rank([tables(kinds[0])])


def plain_survival(time, event, ends):
    """Kaplan and Meier's estimate of rows at some times, one factor for each time of a death."""
    found = []
    for end in ends:
        factor = 1.0
        for t in np.unique(time[event]):
            if t <= end:
                factor *= 1 - (event & (time == t)).sum() / (time >= t).sum()
        found.append(factor)
    return found


def test_sites_have_one_grid_on_which_they_are_pooled_rows():
    rng = np.random.default_rng(0)
    cells = np.arange(1.0, 37.0)
    rows = []
    for size, scale in ((400, 12.0), (150, 20.0), (220, 15.0), (9, 10.0)):
        died, lost = rng.exponential(scale, size), rng.uniform(0, 40, size)
        rows.append((np.minimum(died, lost), died <= lost))
    sites = [SiteTimes(cells, time, event) for time, event in rows]
    found = collect_tables(sites)
    assert found.by_site[3] is None  # too few deaths
    assert [table is not None for table in found.shown] == [True, True, True, False]
    ends = found.total.ends
    assert len(ends) == 7
    for table in found.by_site[:3]:
        left = table.at_risk - table.deaths - table.censored
        for counts in (table.deaths, table.censored, left, table.entered):
            assert ((counts == 0) | (counts >= 5)).all()
        np.testing.assert_array_equal(table.ends, ends)
    time, event = (np.concatenate(each) for each in zip(*rows[:3], strict=True))
    cell = np.searchsorted(ends, time)
    moved = np.append(ends, np.inf)[cell]
    expected = plain_survival(moved, event & (cell < len(ends)), ends)
    np.testing.assert_allclose(kaplan_meier(found.total).survival, expected, rtol=0, atol=1e-12)

    one = found.by_site[0]
    with pytest.raises(ValueError, match="at least 5 rows here"):
        sites[1].table(range(1, 37))
    with pytest.raises(ValueError, match="until must be in"):
        kaplan_meier(one).restricted_mean(40.0)
    late = SiteTimes(cells, 3.0 * np.arange(12), np.arange(12) % 2 > 0)  # all of it, or nothing
    early = SiteTimes(cells, np.repeat([1.0, 30.0, 40.0], [6, 1, 4]), np.full(11, True))
    assert (join_cells([late]), join_cells([early])) == ([33], [1])
    with pytest.raises(ValueError, match="at every site"):
        collect_tables([late, early])


def test_a_cell_does_not_end_where_no_site_has_a_row():
    site = SiteTimes(np.arange(1.0, 9.0), np.repeat([3.5, 5.5, 9.0], [5, 6, 7]), np.full(18, True))
    assert join_cells([site]) == [4, 6]
    table = site.table([4, 6])
    assert (table.at_risk.tolist(), table.deaths.tolist()) == ([18, 13], [5, 6])
    other = SiteTimes(np.arange(1.0, 9.0), np.repeat([3.5, 5.5, 9.0], [4, 2, 9]), np.full(15, True))
    assert join_cells([site, other]) == [6]  # 4 deaths are too few, 6 are enough
    with pytest.raises(ValueError, match="entry must be"):
        SiteTimes(np.arange(1.0, 9.0), np.ones(2), np.full(2, True), np.ones(2))


def test_scores_are_those_of_r_and_scikit_survival_and_are_added_over_sites():
    time, event = R["days"], R["died"] == 1
    right, discordant, tied = R["pairs"]
    pairs = right + tied / 2, right + discordant + tied
    np.testing.assert_allclose(concordant_pairs(time, event, R["risk"]), pairs)
    parts = [
        concordant_pairs(time[some], event[some], -R["karno"][some])
        for some in (R["cell"] == k for k in (1, 2, 3, 4))
    ]
    right, discordant, tied = R["strata"]
    np.testing.assert_allclose(sum(parts), [right + tied / 2, right + discordant + tied])

    k = np.arange(1, 41)
    x = np.sin(3 * k)
    died = -np.log(k * 5**0.5 % 1) * np.exp(-0.7 * x)
    lost = -1.5 * np.log(k * 2**0.5 % 1)
    time, event, times = np.minimum(died, lost), died <= lost, np.array([0.1, 0.3, 0.6, 1.0])
    survival = np.exp(-times * np.exp(0.5 * x)[:, None])
    score = brier_errors(time, event, survival, times) / 40
    # scikit-survival 0.28: brier_score, concordance_index_censored
    expected = [0.0714596920, 0.2004854774, 0.2645385645, 0.2768229114]
    np.testing.assert_allclose(score, expected, atol=1e-9)
    right, pairs = concordant_pairs(time, event, x)
    assert right / pairs == pytest.approx(0.5314533623, abs=1e-9)
    with pytest.raises(ValueError, match="the last observed"):
        brier_errors(time, event, survival, times + 100)
