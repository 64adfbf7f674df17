"""`engram reproduce molar-table`, as it is typed: what it prints and writes, and refuses."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from engram.settings.errors import Refused
from engram.tables.adaptive_models import AdaptiveRegressor
from engram.tables.regressor import MolarRegressor
from engram.tables.studies import comparison
from tests.samples import entry
from tests.studies.support import reproduce
from tests.support import write_npz

NAMES = ["bern", "graz", "lyon", "oslo", "riga", "turin", "ulm", "zadar"]
COLUMNS = ["age", "dose [mg]", "smoker"]
H = ["--task", "hospital", "--target", "pressure"]
SHARED = ["--paper", "--intervals", "shared"]
PAPER = [*H, *SHARED]


def frame(seed=0, rows=40):
    """Eight hospitals; in oslo the dose has another effect, far from the others'."""
    rng = np.random.default_rng(seed)
    hospital = np.repeat(NAMES, rows)
    n = len(hospital)
    x = np.column_stack([rng.integers(30, 80, n), rng.uniform(0, 3, n), rng.integers(0, 2, n)])
    slopes = np.where(hospital == "oslo", 20.0, -6.0)
    y = 100 + 0.4 * x[:, 0] + slopes * x[:, 1] + 5 * x[:, 2] + 4 * rng.normal(size=n)
    data = pd.DataFrame(x, columns=COLUMNS)
    return data.assign(hospital=hospital, pressure=y)


def csv(data, name="table.csv"):
    data.to_csv(name, index=False)
    return name


def done(*arguments):
    result = reproduce("molar-table", *arguments)
    assert result.exit_code == 0, result.output
    return result


def refusal(*arguments):
    result = reproduce("molar-table", *arguments)
    assert isinstance(result.exception, Refused), result.output
    message = str(result.exception)
    assert "\n" not in message
    return message


def results(folder):
    return json.loads((folder / "results.json").read_text())


# --- What it finds -------------------------------------------------------------------------


@pytest.mark.usefixtures("drawn")
def test_a_csv_file(tmp_path):
    out = tmp_path / "run"
    options = ["--splits", 2, "--seed", 3, "--train", 0.4, "--out", out, "--json"]
    text = done(csv(frame()), *PAPER, *options).stdout
    found = json.loads(text.splitlines()[-1])
    assert found == results(out)
    assert found["rows"] == 320
    data = frame()
    model = MolarRegressor(undetermined="shared")
    model.fit(data[COLUMNS], data["pressure"], data["hospital"])
    assert [row["column"] for row in found["shared"]] == [*COLUMNS, "intercept"]
    assert [row["coefficient"] for row in found["shared"][:3]] == pytest.approx(model.shared_coef_)
    assert found["shared"][1]["tasks-that-differ"] == model.support_[:, 1].sum() >= 1
    lines = pd.read_csv(out / "coefficients.csv")
    assert lines["task"].tolist() == np.repeat(NAMES, 4).tolist()
    assert lines["column"].tolist() == [*COLUMNS, "intercept"] * 8
    assert [row["coefficient"] for row in found["tasks"]] == pytest.approx(lines["coefficient"])
    slopes = lines[lines["column"] != "intercept"]
    limits = model.confidence_intervals()
    for name, expected in {
        "coefficient": model.coef_,
        "low": limits.low,
        "high": limits.high,
        "own": model.individual_coef_,
        "own-error": np.stack([site.standard_error[:3] for site in model.sites_]),
    }.items():
        np.testing.assert_allclose(slopes[name], expected.ravel(), rtol=1e-6, err_msg=name)
    assert slopes["differs"].astype(str).tolist() == model.support_.ravel().astype(str).tolist()
    intercepts = lines[lines["column"] == "intercept"]
    assert intercepts["coefficient"].tolist() == pytest.approx(model.intercept_)
    assert intercepts["differs"].isna().all()
    assert (out / "heterogeneity.png").read_bytes().startswith(b"\x89PNG")
    assert "table.csv: 320 rows of 8 tasks, 3 columns" in text
    assert all(name in text for name in NAMES)  # 32 lines: all are shown
    assert "left out" not in text
    # The comparison is that of the library.
    parts = (data[name].to_numpy() for name in (COLUMNS, "pressure", "hospital"))
    table = comparison.Table(*parts, COLUMNS)
    shares = comparison.Shares(0.4, 0.2)
    each = list(comparison.compare(table, "linear", shares, splits=2, seed=3, paper=True))
    assert [row["method"] for row in found["comparison"]] == list(each[0])
    for row in found["comparison"]:
        for split, scores in zip(row["splits"], each, strict=True):
            score = scores[row["method"]]
            assert split["c"] == score.c
            assert split["loss"] == pytest.approx(score.loss)
            assert split["tasks"] == pytest.approx(score.tasks)
    assert found["comparison"][2]["of-first"] > 2  # Pool knows nothing of oslo


def test_an_npz_file_gives_the_same_and_options_other_numbers(tmp_path):
    data = frame()
    arrays = {"x": data[COLUMNS].to_numpy(), "y": data["pressure"].to_numpy()}
    arrays |= {"hospital": np.searchsorted(NAMES, data["hospital"])}
    names = {"task_names": np.array(NAMES), "x_names": np.array(COLUMNS)}
    write_npz(tmp_path / "table.npz", **arrays, **names)
    options = [*SHARED, "--splits", 0, "--soft", "--c", 0.5, "--level", 0.8]
    done("table.npz", "--task", "hospital", "--target", "y", *options, "--out", "one")
    done(csv(data), *PAPER, *options, "--out", "other")
    done(csv(data), *PAPER, "--splits", 0, "--out", "third")
    paths = (tmp_path / run / "coefficients.csv" for run in ("one", "other", "third"))
    one, other, third = map(pd.read_csv, paths)
    pd.testing.assert_frame_equal(one, other)
    assert results(tmp_path / "one")["comparison"] == []
    for column in ("coefficient", "low"):
        assert not np.allclose(third[column], one[column])


def test_of_many_lines_only_those_that_differ_are_printed(tmp_path):
    data = frame()
    for k in range(5):
        data[f"noise{k}"] = np.random.default_rng(k).normal(size=len(data))
    table = csv(data)
    short = done(table, *PAPER, "--splits", 0, "--out", "short").stdout
    marks = [row for row in results(tmp_path / "short")["tasks"] if row["differs"]]
    assert "All 72 coefficients are in coefficients.csv" in short
    assert f"{72 - len(marks)} that are left out" in short
    assert len(re.findall(r"differs\??\s*$", short, re.MULTILINE)) == len(marks)


def test_missing_values_are_imputed_within_tasks_or_left_out(tmp_path):
    data = frame()
    gone = np.random.default_rng(1).random(len(data)) < 0.2
    data.loc[gone, "age"] = np.nan
    table, found = csv(data), {}
    for way in ("complete", "impute"):
        out = tmp_path / way
        done_ = done(table, *H, "--missing", way, "--robust", "HC3", "--splits", 0, "--out", out)
        assert f"{gone.sum()} of 320 rows have missing values" in done_.output
        found[way] = {row["column"]: row["coefficient"] for row in results(out)["shared"]}
        assert (out / "forest.png").read_bytes().startswith(b"\x89PNG")
    model = AdaptiveRegressor(robust="HC3", missing="impute")
    model.fit(data[COLUMNS], data["pressure"], data["hospital"])
    imputed = [found["impute"][name] for name in COLUMNS]
    np.testing.assert_allclose(imputed, model.shared_coef_, rtol=1e-6)
    model = AdaptiveRegressor(robust="HC3")
    model.fit(data[COLUMNS][~gone], data["pressure"][~gone], data["hospital"][~gone])
    complete = [found["complete"][name] for name in COLUMNS]
    np.testing.assert_allclose(complete, model.shared_coef_, rtol=1e-6)


def test_columns_that_are_dropped_and_values_that_are_missing(tmp_path):
    data = frame().assign(name="Ann")
    data.loc[[3, 50, 51, 100], "age"] = np.nan
    options = ["--drop", "name", "--missing", "indicator", "--splits", 0]
    result = done(csv(data), *PAPER, *options, "--out", "run")
    found = results(tmp_path / "run")
    assert [row["column"] for row in found["shared"]] == [*COLUMNS, "age?", "intercept"]
    # Most hospitals have no missing age, so that nothing says what the indicator does there.
    lacking = set(NAMES) - {"bern", "graz", "lyon"}
    assert found["lacking"] == dict.fromkeys(sorted(lacking), "column age? is constant")
    words = "task 'zadar': column age? is constant; it takes the undetermined coefficients from"
    assert words in result.stderr
    unknown = {row["column"] for row in found["tasks"] if row["own"] is None}
    assert unknown == {"age?"}
    assert "the others'" in result.stdout


@pytest.mark.full
def test_classes_and_counts(tmp_path):
    data = frame()
    rng = np.random.default_rng(0)
    eta = (data["pressure"] - 120) / 10
    data["died"] = (rng.random(len(data)) < 1 / (1 + np.exp(-eta / 2))).astype(int)
    data["visits"] = rng.poisson(np.exp(0.1 * eta))
    columns = [*COLUMNS, "hospital"]
    for family, target in (("logistic", "died"), ("poisson", "visits")):
        table = csv(data[[*columns, target]])
        options = f"--family {family} --task hospital --target {target} --splits 1 --paper".split()
        text = done(table, *options, "--out", family).stdout
        assert "Held-out deviance" in text
        assert "A.R.E." not in text
        rows = results(tmp_path / family)["comparison"]
        assert [row["method"] for row in rows] == ["alone", "MOLAR, hard", "MOLAR, soft"]
        assert rows[0]["are"] is None


# --- Adaptive MOLAR, which is the default ---------------------------------------------------


@pytest.mark.full
def test_by_default_tasks_are_shrunk_and_intervals_are_honest(tmp_path):
    out = tmp_path / "run"
    text = done(csv(frame()), *H, "--splits", 1, "--out", out).stdout
    data = frame()
    model = AdaptiveRegressor().fit(data[COLUMNS], data["pressure"], data["hospital"])
    found = results(out)
    assert [row["coefficient"] for row in found["shared"][:3]] == pytest.approx(model.shared_coef_)
    assert [row["spread"] for row in found["shared"][:3]] == pytest.approx(model.spread_)
    assert [row["p-value"] for row in found["shared"][:3]] == pytest.approx(model.p_value_)
    low, high = model.confidence_intervals()
    lines = pd.read_csv(out / "coefficients.csv")
    slopes = lines[lines["column"] != "intercept"]
    assert slopes["low"].tolist() == pytest.approx(low.ravel())
    assert slopes["high"].tolist() == pytest.approx(high.ravel())
    assert "hold at their level however far" in text
    assert "A task differs from 3 standard deviations" in text
    methods = [row["method"] for row in found["comparison"]]
    assert methods[:4] == ["constant", "pooled", "fixed effects", "alone"]
    assert methods[-1] == "MOLAR, adaptive"
    assert "may do as well" in text or "predicts best" in text


def test_columns_that_nothing_determines_are_dropped_all_at_once(tmp_path):
    data = frame().assign(year=lambda d: 2003 + (d["hospital"] == "bern"))
    for k in range(3):
        data[f"twice{k}"] = 2 * data[COLUMNS[k]]
    table = csv(data)
    result = done(table, *H, "--splits", 0, "--out", "run")
    words = "columns that the rows of all tasks together do not determine: "
    (line,) = (line for line in result.stderr.splitlines() if words in line)
    assert line.startswith(f"dropped {words}")
    assert line.count("given by") == 3
    assert "year (constant in every task)" in line
    assert len(results(tmp_path / "run")["dropped"]) == 4
    assert len(results(tmp_path / "run")["shared"]) == 4


# --- What it refuses -----------------------------------------------------------------------


def without(name, kept):
    """The table with only so many rows of a hospital."""
    data = frame()
    return data[(data["hospital"] != name) | (data.groupby("hospital").cumcount() < kept)]


def test_tables_that_cannot_be(tmp_path):
    for change, message in [
        (lambda d: d.assign(age=d["age"].where(d.index != 41)), "missing in age, first in row 43"),
        (lambda d: d[["hospital", "pressure"]], "a column besides pressure to learn from"),
        (lambda d: d.iloc[:40], "at least 2 different labels, got only 'bern'"),
        (lambda d: without("ulm", 2), "task 'ulm' has 2 rows, and 3 parts need one each; --spl"),
        (
            lambda d: d[["hospital", "pressure"]].assign(year=d["hospital"] == "bern"),
            "do not determine: year (constant in every task)",
        ),
        (
            lambda d: d.rename(columns={"hospital": "h"}),
            "must have hospital, as task-column says; it has age, dose",
        ),
        (lambda d: d.rename(columns={"pressure": "p"}), "has no column 'pressure'; it has age, do"),
        (
            lambda d: d.assign(age=d["age"].where(d.index != 0, np.inf)),
            "age has 'inf' in row 2 among numbers",
        ),
    ]:
        with entry(change):
            table = csv(change(frame()))
            assert message in refusal(table, *H, "--splits", 2, "--out", "run")
            assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_options_that_cannot_be(tmp_path):
    csv(frame())
    for arguments, message in [
        (["table.xls", *H], "TABLE must be a .csv, .xlsx or .npz file, got table.xls"),
        (["none.csv", *H], "none.csv cannot be read: No such file"),
        (["table.csv", "--task", "age", "--target", "age"], "different columns, got 'age'"),
        (["table.csv", *H, "--family", "logistic"], "must be 0 or 1 for family logistic, got 1"),
        (["table.csv", *H, "--c", 0], "--c must be above 0 without --paper, got 0"),
        (["table.csv", *H, "--soft"], "--soft needs --paper"),
        (["table.csv", *H, "--intervals", "shared"], "--intervals shared needs --paper"),
        (["table.csv", *H, "--level", 95], "--level must be between 0 and 1, got 95"),
        (["table.csv", *H, "--train", 0.9], "leave rows to be predicted, got 0.9 and 0.2"),
        (["table.csv", *H, "--validation", 0], "must be above 0, and leave rows"),
        (["table.csv", *H, "--drop", "sex"], "no feature 'sex' to be left out; it has age, dose"),
    ]:
        with entry(arguments):
            assert message in refusal(*arguments, "--out", "run")
            assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_an_interrupted_comparison_writes_nothing(tmp_path, monkeypatch):
    real = comparison.compare_once

    def interrupted(*arguments, **more):
        if (tmp_path / "second").exists():
            raise KeyboardInterrupt
        (tmp_path / "second").touch()
        return real(*arguments, **more)

    monkeypatch.setattr(comparison, "compare_once", interrupted)
    words = [csv(frame(rows=12)), *PAPER, "--splits", 3]
    stopped = reproduce("molar-table", *words, out="run")
    assert stopped.exit_code == 130
    assert "interrupted; nothing has been written" in stopped.stderr
    assert not (tmp_path / "run").exists()
