"""Methods compared on held-out rows of a table: what is learned from, and what is only scored."""

import numpy as np
import pytest

from engram.data.tables.tables import Table
from engram.settings.errors import DataError
from engram.studies.summaries import in_words
from engram.tables.baselines import IndividualRegressor
from engram.tables.simulation import sparse_parameters
from engram.tables.studies import comparison as tables
from engram.tables.studies.comparison import (
    Shares,
    SplitScore,
    compare,
    compare_once,
    fit_all,
    lacking,
)
from engram.tables.studies.contenders import choose, is_tie, molar
from engram.tables.studies.preparation import complete, independent
from engram.tables.studies.scores import comparison, comparison_table, failures
from engram.tables.tables import Scaling
from tests.samples import entry

HALF = Shares(0.5, 0.25)


def simulated(coefs, rows=60, noise=1.0, seed=0):
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(len(coefs)), rows)
    x = rng.normal(size=(len(task), coefs.shape[1]))
    y = (x * coefs[task]).sum(axis=1) + noise * rng.normal(size=len(task))
    return Table(x, y, task, [f"x{k}" for k in range(coefs.shape[1])])


def alike(tasks=8, dim=6):
    return simulated(np.tile(np.linspace(-1, 2, dim), (tasks, 1)), rows=40)


def rows_of(table, kept):
    return table._replace(x=table.x[kept], y=table.y[kept], task=table.task[kept])


def parts_of(table, shares, seed):
    """The rows of each part of a split: ``compare_once`` fits to the first, and scores the rest."""
    return tables._split(table.task, shares, np.random.default_rng(seed))


# --- Splits --------------------------------------------------------------------------------


def test_parts_are_disjoint_and_have_every_row_and_every_task():
    task = np.random.default_rng(0).permutation(np.repeat(["a", "b", "c", "d"], [3, 17, 40, 5]))
    table = Table(np.zeros((65, 1)), np.zeros(65), task, ["x"])
    for shares in (HALF, Shares(0.05, 0.05), Shares(0.9, 0.09)):
        parts = parts_of(table, shares, 1)
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(65))
        assert all(set(task[part]) == {"a", "b", "c", "d"} for part in parts)
        for name, size in zip("bc", (17, 40), strict=True):
            train, validation, _ = (int((task[part] == name).sum()) for part in parts)
            assert train == min(max(1, round(shares.train * size)), size - 2)
            assert validation == min(max(1, round(shares.validation * size)), size - train - 1)


def test_a_method_that_cannot_be_fitted_names_the_task():
    table = alike()
    few = np.flatnonzero(table.task == 3)[6:]  # six rows are left, of which three train
    table = rows_of(table, np.setdiff1d(np.arange(320), few))
    found = compare_once(table, "linear", HALF, np.random.default_rng(0), paper=True)
    assert np.isnan(found["LASSO"].loss)
    assert found["LASSO"].reason.startswith("task 3 has 3 rows for 7 coefficients")
    assert found["Pool"].reason is None
    rows = comparison([found], HALF)
    assert failures(rows)[0].startswith("LASSO was not fitted in 1 of 1 splits: task 3 has 3")
    assert "lowest" in in_words(rows)


def test_constants_are_chosen_without_the_test_rows():
    table = simulated(sparse_parameters(np.random.default_rng(3), 6, 8, 2), rows=50)
    *_, test = parts_of(table, HALF, 5)
    found = compare_once(table, "linear", HALF, np.random.default_rng(5), paper=True)
    y = table.y.copy()
    y[test] = 100 * np.random.default_rng(6).normal(size=len(test))
    x = table.x.copy()
    x[test] *= -3
    moved = table._replace(x=x, y=y)
    other = compare_once(moved, "linear", HALF, np.random.default_rng(5), paper=True)
    assert [score.c for score in found.values()] == [score.c for score in other.values()]
    assert len({score.c for score in found.values()}) > 1
    assert all(other[name].loss > 100 * score.loss for name, score in found.items())


def fits(table, seed):
    """OLS on the rows to learn from, and on those to be scored on, in units of the former."""
    train, _, test = parts_of(table, HALF, seed)
    x = Scaling.of(table.x[train], None).apply(table.x)
    parts = [(x[part], table.y[part], table.task[part]) for part in (train, test)]
    return [IndividualRegressor().fit(*part) for part in parts], parts[1]


def test_a_score_by_hand():
    table = simulated(sparse_parameters(np.random.default_rng(3), 4, 3, 1), rows=30)
    found = compare_once(table, "linear", HALF, np.random.default_rng(2), paper=True)["OLS"]
    (model, truth), (x, y, task) = fits(table, 2)
    errors = (y - model.predict(x, task)) ** 2
    assert found.loss == pytest.approx(np.mean([errors[task == m].mean() for m in range(4)]))
    assert found.distance == pytest.approx(np.abs(model.coef_ - truth.coef_).sum())


def test_coefficients_that_test_rows_do_not_determine_have_no_distance():
    table = simulated(sparse_parameters(np.random.default_rng(3), 4, 3, 1), rows=30)
    table.x[table.task == 1, 2] = 2.0
    found = compare_once(table, "linear", HALF, np.random.default_rng(2), paper=True)["OLS"]
    (model, truth), _ = fits(table, 2)
    gaps = np.abs(model.coef_ - truth.coef_)
    gaps[1, 2] = 0
    assert found.distance == pytest.approx(gaps.sum())
    few = Shares(0.9, 0.05)  # two test rows a task, and four coefficients
    each = next(compare(table, "linear", few, splits=1, paper=True))
    assert {score.distance for score in each.values()} == {0.0}


# --- Completing tables ---------------------------------------------------------------------


def holed():
    x = np.arange(12.0).reshape(4, 3)
    x[[1, 2], 0] = np.nan
    x[[1, 2], 2] = np.nan
    x[3, 1] = np.nan
    return Table(x, np.arange(4.0), np.array(["a", "a", "b", "b"]), ["age", "dose", "load"])


def test_indicators_say_where_values_are_missing():
    table = complete(holed(), "linear", indicators=True)
    assert table.columns == ["age", "dose", "load", "age, load?", "dose?"]
    assert table.x.tolist() == [[0, 1, 2, 0, 0], [0, 4, 0, 1, 0], [0, 7, 0, 1, 0], [9, 0, 11, 0, 1]]


def test_tables_that_cannot_be_completed():
    for change, family, message in [
        ({}, "linear", "missing in age, dose, load, first in row 1, of task 'a': --missing ind"),
        ({"y": np.array([1, 2, np.nan, 3])}, "linear", "numbers .* got nan in row 2, of task 'b'"),
        ({"y": np.array([1, 0, 2.0, 0])}, "logistic", "0 or 1 for .* got 2 in row 2, of task 'b'"),
        ({"y": np.array([1, 0, 2.0, -1])}, "poisson", "0 or more .* got -1 in row 3, of task 'b'"),
        ({"y": np.ones(4)}, "linear", "the target is 1 in all rows"),
        ({"x": np.ones((4, 0)), "columns": []}, "linear", "4 rows and 0 features"),
    ]:
        with entry(change, family), pytest.raises(DataError, match=message):
            complete(holed()._replace(**change), family, indicators=False)


def test_tasks_that_lack_something_are_named():
    table = alike(tasks=3, dim=2)
    table.x[table.task == 1, 1] = 4.0
    table = rows_of(table, (table.task != 2) | (np.cumsum(table.task == 2) <= 2))
    model = fit_all(table, molar("linear", "hard", 1.0))
    assert lacking(table, model, "linear") == {
        1: "column x1 is constant",
        2: "it has 2 rows for 3 coefficients",
    }
    np.testing.assert_array_equal(model.coef_[2], model.shared_coef_)


# --- Rows and words ------------------------------------------------------------------------


def splits_of(**losses):
    """Splits in which methods have these losses, and twice those as distances."""
    each = zip(*losses.values(), strict=True)
    return [
        {name: SplitScore(0.0, x, 2 * x, tasks=(x,)) for name, x in zip(losses, split, strict=True)}
        for split in each
    ]


def test_ratios_by_hand():
    first, other = comparison(splits_of(OLS=[2.0, 4.0, 5.0], RM=[1.0, 1.0, 5.0]), HALF)
    assert (first["of-first"], first["of-first-error"]) == (1, 0)
    # Ratios 1/2, 1/4, 1: mean 7/12; deviations -1/12, -4/12, 5/12, whose squares sum to 42/144.
    assert other["of-first"] == other["are"] == pytest.approx(7 / 12)
    assert other["of-first-error"] == pytest.approx((42 / 144 / 2 / 3) ** 0.5)
    assert (other["loss"], other["constants"]) == (pytest.approx(7 / 3), {"0": 3})
    (single,) = comparison(splits_of(OLS=[2.0]), HALF)
    assert (single["of-first"], single["of-first-error"]) == (1, None)
    assert comparison(splits_of(OLS=[0.0], RM=[1.0]), HALF)[1]["of-first"] is None
    scores = splits_of(OLS=[1.0, 2.0], RM=[2.0, 3.0])
    for split in scores:
        split["RM"] = split["RM"]._replace(c=512.0, edge=True)
    rows = comparison(scores, HALF)
    assert rows[1]["edges"] == 2
    column = comparison_table(rows, paper=False).columns[-1]
    assert list(column.cells) == ["", "512 (2), 2 at the grid's end"]


def test_words_say_no_more_than_the_splits_do():
    clear = splits_of(OLS=[2.0, 2.1, 1.9], RM=[1.0, 1.1, 0.9])
    assert in_words(comparison(clear, HALF)).startswith("RM predicts best: its mean loss is below")
    close = splits_of(OLS=[2.0, 3.0, 1.0], RM=[1.0, 3.1, 1.1], Pool=[5.0, 6.0, 5.0])
    words = in_words(comparison(close, HALF))
    none = "No method is surely the best: RM has the lowest mean loss, but OLS may"
    assert words.startswith(none)
    assert words.endswith("OLS is simpler than RM, and enough as far as this table can tell.")
    assert "No method is surely" in in_words(comparison(clear[:1], HALF))
    alone = splits_of(OLS=[1.0, 1.0], RM=[2.0, 2.0])
    assert in_words(comparison(alone, HALF)).startswith("OLS predicts best")
    first = splits_of(OLS=[1.0, 1.2], RM=[1.1, 1.1])
    assert in_words(comparison(first, HALF)).endswith("OLS is the simplest of them.")


def test_a_method_worse_than_the_constant_is_never_called_enough():
    def row(method, loss, low):
        return {"method": method, "loss": loss, "gap-low": low, "reason": None}

    # The constant is surely worse than the best; pooling, worse still, has a wide interval.
    rows = [row("constant", 0.471, 0.05), row("pooled", 0.635, -0.1), row("ridge", 0.4, 0.0)]
    assert in_words(rows).endswith("ridge is the simplest of them that do no worse than constant.")
    rows[1]["loss"] = 0.45
    assert "pooled is simpler than ridge, and enough" in in_words(rows)


# --- Constants -----------------------------------------------------------------------------


def test_a_grid_grows_until_its_best_is_inside():
    def chosen(loss, grid):
        return choose(lambda c: np.array([loss(c) - 1, loss(c) + 1]), grid)[::2]

    assert chosen(lambda c: (np.log(c) - np.log(20)) ** 2, (0.5, 1.0, 2.0)) == (16, False)
    assert chosen(lambda c: abs(c - 0.125), (0.5, 1.0, 2.0)) == (0.125, False)
    assert chosen(lambda c: 1 / c, (0.5, 1.0, 2.0))[1]
    flat = chosen(lambda c: max(3 - c, 0.0), (2.0, 3.0, 4.5))  # no further where nothing changes
    assert flat == (3.0, False)
    assert chosen(lambda c: -c, (0.0,)) == (0.0, False)


def test_of_constants_that_tasks_do_not_tell_apart_the_largest_is_chosen():
    # Differences to the best, c = 2, by task: (0, 1, 2), 1 on average, s.d. 1, standard error 0.58;
    # and (-1, 0, 2), 1/3 on average, s.d. 1.53, standard error 0.88.
    losses = {1.0: [5.0, 5.0, 5.0], 2.0: [1.0, 1.0, 1.0], 3.0: [0.0, 1.0, 3.0], 4.0: [1, 2, 3.0]}
    found = choose(lambda c: np.array(losses[c]), list(losses), simplest=True)
    assert found.constant == 3
    assert found.losses.tolist() == losses[3.0]
    assert choose(lambda c: np.array(losses[c]), list(losses)).constant == 2
    assert is_tie(np.array([1.0]), np.array([1.0]))
    assert not is_tie(np.array([1.1]), np.array([1.0]))


# --- Columns that nothing determines -------------------------------------------------------


def test_dependent_columns_are_found_at_once_with_what_they_depend_on():
    table = alike(tasks=3, dim=3)
    more = [table.x[:, 0] + table.x[:, 1], np.full(120, 3.0), table.task % 2, table.x[:, 2]]
    x = np.column_stack([table.x, *more])
    names = ["a", "b", "c", "sum", "year", "public", "copy"]
    kept, dropped = independent(table._replace(x=x, columns=names))
    assert len(kept.columns) == 3
    assert len(dropped) == 4
    assert "year (constant in every task)" in dropped
    assert "public (constant in every task)" in dropped
    assert any(words in dropped for words in ("c (given by copy)", "copy (given by c)"))
    assert sum("given by" in words and words.count(",") == 1 for words in dropped) == 1
    same, none = independent(table)
    assert same is table
    assert none == []
