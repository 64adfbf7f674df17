"""Adaptive sharing between sites: runs, compared with the pure exchange on the same rows."""

import numpy as np
import pandas as pd
import pytest

import engram
from engram.data.tables.tables import table_data
from engram.tables.exchange import STILL, answer, personal, tell
from engram.tables.federation.report import coefficient_table
from engram.tables.heterogeneity import REACH
from engram.tables.site import estimate_site
from tests.samples import sampled
from tests.tables.federation.sites import run, settings


@pytest.mark.parametrize("family", sampled(["linear", "logistic"], ["linear"]))
def test_a_run_is_the_exchange_of_the_library(tmp_path, family):
    special = {"sharing": "adaptive", "dataset": f"sparse-{family}", "family": family}
    found, kept = run(tmp_path / "run", **special)
    experiment = settings(**special)
    rows = [rows.with_ones() for rows in table_data(experiment).train]
    told = None
    for _ in range(experiment.rounds):
        each = [tell(own, told, family=family, reach=REACH) for own in rows]
        last = answer(each, told, family=family, reach=REACH, max_weight=experiment.max_weight)
        told = last.told
        if told.change <= STILL:
            break
    np.testing.assert_allclose(found["shared"]["coef"], last.coef, rtol=1e-9, atol=1e-12)
    for client, own in enumerate(rows):
        coef = personal(own, told, family=family, reach=REACH)
        np.testing.assert_allclose(kept[client][0], coef, rtol=1e-9, atol=1e-12)
    assert found["loss-personal"] < found["loss-own"]
    assert found["unsettled"] is None
    if family == "linear":
        sites = [estimate_site(own) for own in rows]
        np.testing.assert_allclose(found["estimates"]["coef"], [s.coef for s in sites], rtol=1e-6)
        errors = [site.standard_error for site in sites]
        np.testing.assert_allclose(found["estimates"]["error"], errors, rtol=1e-6)


def test_an_exchange_that_ends_too_early_says_so(tmp_path):
    special = {"sharing": "adaptive", "dataset": "sparse-logistic", "family": "logistic"}
    found, _ = run(tmp_path / "run", exchanges=2, **special)
    assert found["unsettled"] > STILL
    assert "has not converged" in caption_of(found)


def test_adaptive_sites_need_a_threshold():
    with pytest.raises(ValueError, match="threshold-scale must be above 0 with sharing=adapt"):
        settings(sharing="adaptive", threshold_scale=0.0)


def caption_of(found):
    return coefficient_table(found, {"molar.level": 0.95}).caption or ""


@pytest.fixture
def table(tmp_path):
    """Three sites; half_years is twice the age, and the last site's pressure is always 130."""
    rng = np.random.default_rng(0)
    age, pressure = rng.normal(62, 12, 90), rng.normal(130, 18, 90)
    pressure[60:] = 130
    days = 0.4 * age + 0.1 * pressure + rng.normal(0, 3, 90)
    site = np.repeat(["a", "b", "c"], 30)
    columns = {"site": site, "age": age, "pressure": pressure, "half_years": 2 * age}
    frame = pd.DataFrame(columns | {"days": days})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.drop(columns="half_years").to_csv(tmp_path / "plain.csv", index=False)
    return tmp_path


def of_table(path, **special):
    keys = {"dataset": f"csv:{path}", "task_column": "site", "target_column": "days"}
    keys |= {"method": "molar", "out": path.with_suffix(""), "progress": False}
    return engram.simulate(**keys | special)


def test_columns_that_others_give_are_dropped_by_name_at_all_sites(table, warnings_of_engram):
    found = of_table(table / "t.csv", sharing="adaptive")
    plain = of_table(table / "plain.csv", sharing="adaptive")
    shared, less = found.results["shared"], plain.results["shared"]
    coef = dict(zip(shared["names"], shared["coef"], strict=True))
    assert coef.pop("half_years") == 0
    np.testing.assert_allclose([*coef.values()], less["coef"], rtol=1e-6)
    assert list(shared["no-interval"]) == ["half_years"]
    assert "column dropped at all sites: half_years (given by age)" in warnings_of_engram.text
    assert "half_years: the rows of all sites" in caption_of(found.results)
    own = found.personal_model("a")
    assert np.isfinite(own["age"].numpy()).all()
    assert not np.isfinite(own["half_years"].numpy()[1:3]).any()
    alone = plain.personal_model("c")  # whose rows show nothing of pressure
    assert np.isinf(alone["pressure"].numpy()[1:3]).all()
    assert np.isfinite(plain.personal_model("a")["pressure"].numpy()).all()


def test_medians_refuse_columns_that_others_give_by_name(table):
    with pytest.raises(Exception, match=r"no site's rows determine age, half_years \(column"):
        of_table(table / "t.csv")


def test_medians_of_few_sites_say_why_they_have_no_interval_and_whose_estimate_they_are(table):
    found = of_table(table / "plain.csv").results
    assert set(found["shared"]["no-interval"]) == {"age", "pressure", "intercept"}
    assert "age" in found["shared"]["one-site"]
    caption = caption_of(found)
    assert "needs 6 sites of equal weight" in caption
    assert "sharing=adaptive" in caption
    assert "One site's own estimate to the digit" in caption


@pytest.mark.parametrize(
    ("name", "sharing", "without"),
    [
        ("t.csv", "adaptive", ["half_years"]),
        ("plain.csv", "adaptive", []),
        ("plain.csv", "median", ["age", "pressure", "intercept"]),
    ],
)
def test_no_interval_of_classes_is_missing_without_a_reason(table, name, sharing, without):
    data = pd.read_csv(table / name)
    data["days"] = (data["days"] > data["days"].median()).astype(int)
    data.to_csv(table / "these.csv", index=False)
    found = of_table(table / "these.csv", sharing=sharing, family="logistic").results
    shared = found["shared"]
    lows = zip(shared["names"], shared["low"], strict=True)
    assert [name for name, low in lows if low is None] == without
    assert list(shared["no-interval"]) == without
    assert all(reason in caption_of(found) for reason in shared["no-interval"].values())


def test_a_capped_weight_is_said_in_the_table_and_leaves_a_site_its_own_estimate(tmp_path):
    rng = np.random.default_rng(0)
    site = np.repeat(["large", "b", "c"], [5000, 60, 60])
    age = rng.normal(62, 12, len(site))
    days = np.where(site == "large", 0.4, 0.1) * age + rng.normal(0, 3, len(site))
    pd.DataFrame({"site": site, "age": age, "days": days}).to_csv(tmp_path / "t.csv", index=False)
    found = of_table(tmp_path / "t.csv", sharing="adaptive")
    assert found.results["bounded"] == ["large"]
    words = "By max-weight, large counts less for others than its rows would"
    assert words in caption_of(found.results)
    coef, low, high, own, _ = found.personal_model("large")["age"].tolist()
    assert low < coef < high
    assert abs(coef - own) < 0.5 * (high - own)
    (tmp_path / "t.csv").rename(tmp_path / "equal.csv")
    equal = of_table(tmp_path / "equal.csv", sharing="adaptive", site_weights="equal")
    assert equal.results["bounded"] == []  # by the setting itself, of which every site knows
    assert not caption_of(equal.results)


def test_a_site_in_other_units_is_left_out_by_name(table):
    data = pd.read_csv(table / "plain.csv")
    data.loc[data["site"] == "c", "age"] *= 1e7
    data.to_csv(table / "units.csv", index=False)
    found = of_table(table / "units.csv", sharing="adaptive").results
    assert found["left-out"] == {"2": "age is in other units than elsewhere, it seems"}
    assert found["sites"] == 2
