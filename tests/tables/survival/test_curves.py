"""Event tables and curves: equal to R's survival, and to pooled rows on the joined grid."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from engram.scoring import brier_errors, concordant_pairs
from engram.scoring.event_tables import collect_tables, event_table
from engram.tables.survival.curves import kaplan_meier, log_rank, nelson_aalen

R = {
    name: np.array(values)
    for name, values in json.loads(Path(__file__).with_name("curves.json").read_bytes()).items()
}


def tables(*groups, entry=None):
    """Tables of groups of R's rows on one grid of periods."""
    each = (
        event_table(
            R["times"][some],
            R["events"][some] == 1,
            None if entry is None else entry[some],
            least=1,
        )
        for some in groups
    )
    return collect_tables([*each]).by_site


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


def drawn(rng, size, scale):
    """Times of events and losses of patients."""
    died, lost = rng.exponential(scale, size), rng.uniform(0, 40, size)
    return np.minimum(died, lost), died <= lost


def test_sites_have_one_grid_on_which_they_are_pooled_rows():
    rng = np.random.default_rng(0)
    rows = [drawn(rng, *site) for site in ((400, 12.0), (150, 20.0), (220, 15.0), (9, 10.0))]
    found = collect_tables([event_table(*each) for each in rows])
    assert found.by_site[3] is None  # too few deaths
    assert [table is not None for table in found.shown] == [True, True, True, False]
    ends = found.total.ends
    assert ends.tolist() == [2, 4, 8, 12, 16, 24, 64]
    time, event = (np.concatenate(each) for each in zip(*rows[:3], strict=True))
    moved = ends[np.searchsorted(ends, time)]
    expected = plain_survival(moved, event, ends)
    np.testing.assert_allclose(kaplan_meier(found.total).survival, expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="until must be in"):
        kaplan_meier(found.by_site[0]).restricted_mean(70.0)

    early = event_table(np.repeat([1.0, 2.0], [6, 8]), np.repeat([True, False], [6, 8]))
    late = event_table(np.repeat([7.0, 8.0, 30.0], [5, 5, 7]), np.arange(17) < 10)
    both = collect_tables([early, late])  # nobody is left of the early ones, whatever ends later
    assert both.total.ends.tolist() == [7, 16, 32]
    assert [table.deaths.tolist() for table in both.by_site] == [[6, 0, 0], [5, 5, 0]]
    assert both.total.at_risk.tolist() == [31, 12, 7]
    with pytest.raises(ValueError, match="sites must be at least 1, with enough deaths"):
        collect_tables([event_table(*rows[3])])
    with pytest.raises(ValueError, match="entry must be"):
        event_table(np.ones(9), np.full(9, True), np.ones(9))


def test_no_cell_and_no_rest_is_of_few_rows():
    rng, least, cells = np.random.default_rng(0), 5, 0
    for case, size in product(range(4), (4, 12, 30, 100, 1000)):
        time, event = drawn(rng, size, 20.0)
        time = np.ceil(time) if case % 2 else time
        begin = np.where(rng.random(size) < 0.5, 0, time * rng.random(size)) * (case > 1)
        table = event_table(time, event, begin, least=least)
        for start, end, *told in zip(*(table and ([0, *table.ends], *table)) or [()], strict=False):
            there, before = (time > start) & (time <= end), begin < end
            entered = before & ((begin >= start) | (start == 0))
            counts = [n.sum() for n in (entered, there & event, there & ~event)]
            assert told == counts
            counts += [(before & (time > end)).sum()]  # who is left under observation
            assert all(n == 0 or n >= least for n in counts)
            cells += 1
        for kind in (event, ~event) if table else ():
            rest = (kind & (time > table.ends[-1])).sum()
            assert rest == 0 or rest >= least or kind.sum() < least
    assert cells > 80
    time, begin = np.repeat([1.0, 50.0, 60.0], [6, 2, 10]), np.repeat([0.0, 20.0], [8, 10])
    table = event_table(time, np.full(18, True), begin, least=least)
    assert table.ends[0] > 20  # from 1 to 20, two rows are left


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
