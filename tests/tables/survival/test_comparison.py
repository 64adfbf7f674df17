"""The table of sites' hazard ratios, against what it is made of."""

import numpy as np
import pytest

from engram.tables import CoxRegressor, survival_target
from engram.tables.survival.own_intervals import own_intervals
from tests.tables.survival.sites import COEF, draw_sites


def test_it_prints_each_site_both_shared_intervals_and_who_differs():
    sites = draw_sites([COEF, np.add(COEF, [2.0, 0]), COEF, COEF])
    sites[3] = sites[3]._replace(event=np.arange(60) == 7)
    x, time, event = (np.concatenate([one[i] for one in sites]) for i in (0, 1, 3))
    task, y = np.repeat(["bern", "graz", "oslo", "ulm"], 60), survival_target(event, time)
    model = CoxRegressor().fit(x, y, task)
    found = model.compare_sites(x, y, task, level=0.9)
    alone = own_intervals(sites[0], level=0.9)
    np.testing.assert_allclose(found.own[0].limits, alone.limits, rtol=1e-4)
    assert found.sharing.effects.separate[:, 0].tolist() == [False, True, False, False]
    lines = [line.split() for line in str(found).splitlines()]
    assert lines[0][:4] == ["4", "sites,", f"{event.sum():g}", "events:"]
    assert lines[2] == ["x0", "events", "ratio", "low", "high", "personal"]
    first = np.exp([alone.coef[0], *np.transpose(alone.limits)[0], found.sharing.coef[0, 0]])
    np.testing.assert_allclose([float(word) for word in lines[3][2:]], first, rtol=5e-3)
    assert lines[4][-3:-1] == ["differs,", "p"]
    assert lines[6][:2] == ["ulm", "1"]
    half = 1.6448536 * model.standard_error_[0]
    mean = np.exp(model.coef_[0] + half * np.array([0, -1, 1]))
    assert lines[7][:5] == ["weighted", "mean", "of", "the", "sites"]
    np.testing.assert_allclose([float(word) for word in lines[7][6:]], mean, rtol=5e-3)
    assert lines[8][:6] == ["all", "sites", "but", "one", "at", "most"]
    assert float(lines[8][8]) < float(lines[7][7])
    adaptive = CoxRegressor(sharing="adaptive").fit(x, y, task)
    np.testing.assert_allclose(adaptive.task_coef_, found.sharing.coef)
    risks = adaptive.predict(x[[0, 60, 130]], task[[0, 60, 130]])
    np.testing.assert_allclose(risks, [x[i] @ adaptive.task_coef_[i // 60] for i in (0, 60, 130)])
    with pytest.raises(ValueError, match=r"three sites .* too few\), got 'hard'"):
        CoxRegressor(sharing="hard").fit(x, y, task)
    with pytest.raises(ValueError, match="number of sites must be at least 2, got 1"):
        model.compare_sites(x[:60], y[:60], task[:60])
