"""One exchange between sites gives what the library gives on all rows in one place, to 1e-10."""

import numpy as np
import pytest

from engram.client.memory import RamStore
from engram.compare.reports.base import plots_of
from engram.data.tables.tables import table_data
from engram.runs.run import Run
from engram.settings.errors import Refused
from engram.tables.federation.report import effects_of
from engram.tables.site import estimate_site
from tests.support import write_npz
from tests.tables.federation.sites import (
    SITES_THERE,
    assert_as_in_one_place,
    in_one_place,
    run,
    settings,
)


@pytest.mark.parametrize(
    ("nodes", "special"),
    [
        (1, {}),
        (SITES_THERE, {"thresholding": "soft", "threshold_scale": 0.7}),
        (5, {"intercept": False}),
        (1, {"dataset": "sparse-logistic", "family": "logistic", "test_fraction": 0.1}),
        (5, {"dataset": "sparse-poisson", "family": "poisson"}),
    ],
)
def test_the_exchange_is_the_library(tmp_path, special, nodes):
    found, kept = run(tmp_path / "run", nodes=nodes, **special)
    model = in_one_place(settings(**special))
    intercept = special.get("intercept", True)
    assert_as_in_one_place(found, kept, model, range(SITES_THERE), intercept=intercept)
    assert (found["sites"], found["left-out"]) == (SITES_THERE, {})


def test_a_table_with_a_task_column(tmp_path):
    rng = np.random.default_rng(0)
    x, task = rng.normal(size=(400, 4)), np.repeat(np.arange(4), 100)
    y = x @ [1, 2, 3, 4] + rng.normal(size=400)
    x[300:, 2] = 1  # in the last task a column is constant
    path = write_npz(tmp_path / "mine.npz", x=x, y=y, task=task)
    special = {"dataset": path, "num_clients": 4}
    found, kept = run(tmp_path / "run", nodes=2, **special)
    assert found["lacking"] == {"3": "column x2 is constant"}
    assert found["sites"] == 4
    model = in_one_place(settings(**special))
    assert kept[3][0, 2] == found["shared"]["coef"][2]
    np.testing.assert_allclose(kept[3][0, :4], model.coef_[3], rtol=1e-10)


def test_what_is_recorded(tmp_path):
    found, kept = run(tmp_path / "run")
    record = Run.open(tmp_path / "run")
    assert record.results == found
    (row,) = record.rows()
    assert row["cohort"] == list(range(SITES_THERE))
    assert (row["sites"], row["left-out"], row["absent"]) == (SITES_THERE, 0, {})
    assert found["shared"]["names"] == [*(f"x{k}" for k in range(20)), "intercept"]
    assert found["rows"] == sum(len(rows.y) for rows in table_data(settings()).train)
    # The losses are the mean squared errors on held-out rows, of what each site keeps.
    test = table_data(settings()).test[3]
    x = np.hstack([test.x, np.ones((len(test.y), 1))])
    for name, row in (("personal", 0), ("own", 3), ("shared", 4)):
        loss = np.mean((x @ kept[3][row] - test.y) ** 2)
        assert found["clients"][f"loss-{name}"][3] == pytest.approx(loss, rel=1e-10)
    assert found["loss-personal"] == pytest.approx(np.mean(found["clients"]["loss-personal"]))
    assert found["loss-personal"] < found["loss-own"]
    # The forest plot has the sites' own estimates, which they have sent.
    site = estimate_site(table_data(settings()).train[3].with_ones())
    given = found["estimates"]
    assert (given["sites"][3], given["freedom"][3]) == ("3", site.freedom)
    np.testing.assert_allclose(given["coef"][3], site.coef, rtol=1e-10)
    np.testing.assert_allclose(given["error"][3], site.standard_error, rtol=1e-10)
    effects = effects_of(found, record.settings)
    assert [one.name for one in effects] == found["shared"]["names"]
    assert set(plots_of(record)) == {"forest", "losses"}


def test_a_run_may_fit_all_rows_and_be_scored_on_none(tmp_path):
    found, kept = run(tmp_path / "run", test_fraction=0)
    every = [rows.with_ones() for rows in table_data(settings(test_fraction=0)).train]
    assert found["rows"] == sum(len(rows.y) for rows in table_data(settings()).train) / 0.6
    assert (found["scored"], found["loss-personal"]) == (0, None)
    np.testing.assert_allclose(kept[5][3], estimate_site(every[5]).coef, rtol=1e-10)
    with pytest.raises(Refused, match="test-fraction must be above 0 for ditto"):
        settings(method="ditto", dataset="digits", test_fraction=0)


def test_a_run_that_is_resumed_sends_the_same_estimate_again(tmp_path):
    found, kept = run(tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()  # as if it had been killed before
    store = RamStore()
    again, same = run(tmp_path / "run", store=store, resume=str(tmp_path / "run"))
    assert again | {"ms-per-round": 0} == found | {"ms-per-round": 0}
    assert all(np.array_equal(kept[client], same[client]) for client in kept)
    with pytest.raises(Refused, match=r"level was 0\.95, not 0\.9"):
        run(tmp_path / "run", resume=str(tmp_path / "run"), level=0.9)
