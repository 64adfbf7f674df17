"""Rows in memory that say more than their numbers: masks, sparse matrices, items of data sets."""

from collections import namedtuple

import numpy as np
import pytest
import scipy.sparse
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from engram.data.readers.in_memory import arrays_of
from engram.settings.errors import DataError
from tests.data.readers.test_shaping import read
from tests.samples import entry

ROWS = 300
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")
HOLES = (RNG.random(X.shape) < 0.1) & (np.arange(ROWS) > 4)[:, None]
HOLES[5, 1] = True
CODES = RNG.integers(9, size=ROWS)


class Rows(Dataset):
    """Items as a function of the row's number makes them."""

    def __init__(self, item, targets=None, count=ROWS):
        self.item, self.count, self.read = item, count, 0
        if targets is not None:
            self.targets = targets

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        self.read += 1
        return self.item(row)


# --- Masks ---------------------------------------------------------------------------------------


def test_masked_values_are_missing_and_not_those_behind_the_mask():
    for dtype in ["float32", "float64", "int32", "uint8"]:
        values = np.abs(X * 50).astype(dtype)
        masked = np.ma.array(values, mask=HOLES)
        for rows in (masked, [*masked]):
            with entry(dtype, type(rows)):
                found = arrays_of((rows, Y))["x"]
                np.testing.assert_array_equal(found, np.where(HOLES, np.nan, values))


def test_a_mask_that_hides_nothing_changes_nothing():
    found = arrays_of((np.ma.array(X, mask=np.zeros(X.shape, bool)), Y))["x"]
    assert found.dtype == X.dtype
    np.testing.assert_array_equal(found, X)


HIDDEN = np.arange(ROWS) == 7
MASKED = [
    ((np.ma.array(X, mask=HOLES), Y), {}, "x must be finite, got nan in row 5 of client 0"),
    (
        (X, np.ma.array(Y, mask=HIDDEN)),
        {},
        "one class a row, got .* nan in row 7 of client 0: a row",
    ),
    ((X, np.ma.array(X[:, 0], mask=HIDDEN)), {"task": "regression"}, "finite, got nan in row 7 of"),
    (
        (X, np.ma.array(Y.astype(str), mask=HIDDEN)),
        {},
        "numbers: masked entries of .* have no value",
    ),
]


def test_masked_values_are_refused_where_none_may_be_missing():
    for data, settings, words in MASKED:
        with entry(data, settings, words), pytest.raises(DataError, match=words):
            read([data], **settings)


def test_items_may_be_masked():
    masked = np.ma.array(X, mask=HOLES)
    data = read([Rows(lambda row: (masked[row], Y[row]))])
    with pytest.raises(DataError, match="x must be finite, got nan"):
        data.train.take(torch.arange(60))
    labels = np.ma.array(Y, mask=HOLES.any(axis=1))
    found = arrays_of(Rows(lambda row: (X[row], labels[row])))["y"]
    np.testing.assert_array_equal(found, np.where(HOLES.any(axis=1), np.nan, Y))


# --- Sparse matrices -----------------------------------------------------------------------------


def test_sparse_matrices_are_told_the_way():
    words = r"x of client 0 must be an array of numbers: a sparse one is given by its toarray\(\)"
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.coo_array):
        with pytest.raises(DataError, match=words):
            read([(kind(X), Y)])


# --- Items of data sets --------------------------------------------------------------------------

Named = namedtuple("Named", "label image")
Plain = namedtuple("Plain", "inputs outputs")


PAIRS = [
    lambda row: (X[row], Y[row]),
    lambda row: [X[row], Y[row]],
    lambda row: {"label": Y[row], "pixels": X[row]},
    lambda row: {"x": X[row], "y": Y[row]},
    lambda row: Named(Y[row], X[row]),
    lambda row: Plain(X[row], Y[row]),
]


def test_items_are_pairs_or_name_their_target():
    for item in PAIRS:
        with entry(item):
            found = arrays_of(Rows(item))
            np.testing.assert_array_equal(found["x"].take(np.arange(ROWS)), X)
            np.testing.assert_array_equal(found["y"], Y)


def test_other_named_fields_are_inputs_by_name():
    found = arrays_of(Rows(lambda row: {"ids": X[row], "mask": CODES[row : row + 1], "y": Y[row]}))
    taken = found["x"].take(np.arange(ROWS))
    assert sorted(taken) == ["ids", "mask"]
    np.testing.assert_array_equal(taken["mask"][:, 0], CODES)
    np.testing.assert_array_equal(found["y"], Y)


ELSE = [
    (lambda row: (X[row], CODES[row], Y[row]), "tuple of length 3"),
    (lambda row: (X[row],), "tuple of length 1"),
    (lambda row: torch.tensor([1.0, 2.0]), r"Tensor of shape \(2,\)"),
    (lambda row: {"pixels": X[row], "kind": Y[row]}, "dict with pixels, kind"),
    (lambda row: {"x": X[row], "y": Y[row], "label": CODES[row]}, "dict with x, y, label"),
    (lambda row: {"y": Y[row]}, "dict with y"),
]


def test_targets_of_other_types_and_unequal_rows_are_refused():
    for target in ({"boxes": X[0]}, None):
        words = "^data: targets must be numbers or text, got"
        with entry(target), pytest.raises(DataError, match=words):
            arrays_of(Rows(lambda row, target=target: (X[row], target)))
    rows = arrays_of(Rows(lambda row: (X[row][: 2 + row % 2], Y[row])))["x"]
    with pytest.raises(DataError, match=r"^rows must be of one shape and type each$"):
        rows.take(np.arange(4))


def test_other_items_are_refused():
    way = r"items must be pairs \(x, y\), such as .* for several inputs, or named fields"
    for item, got in ELSE:
        words = rf"^client 1: {way}.*, got {got}$"
        with entry(item, got), pytest.raises(DataError, match=words):
            arrays_of([TensorDataset(torch.tensor(X), torch.tensor(Y)), Rows(item)])


def test_pictures_among_items_have_their_colors_and_no_numbers_of_a_palette():
    colors = RNG.integers(0, 256, (ROWS, 4, 5, 3)).astype("uint8")
    pictures = [Image.fromarray(each).quantize(9) for each in colors]
    found = arrays_of(Rows(lambda row: (pictures[row], Y[row])))["x"].take(np.arange(ROWS))
    expected = np.stack([np.asarray(each.convert("RGB")) for each in pictures])
    np.testing.assert_array_equal(found, expected)


# --- Targets beside the items --------------------------------------------------------------------


def test_targets_that_are_the_items_own_spare_reading_all_of_them():
    data = Rows(lambda row: (X[row % ROWS], Y[row % ROWS]), np.tile(Y, 4), 4 * ROWS)
    np.testing.assert_array_equal(arrays_of(data)["y"], np.tile(Y, 4))
    assert data.read <= 210


NOT_THEIRS = [
    (lambda row: (X[-1 - row], Y[-1 - row]), ROWS, Y),  # in another order
    (lambda row: (X[row], CODES[row] % 2), ROWS, torch.tensor(CODES)),  # of another task
    (lambda row: (X[2 * row], Y[2 * row]), ROWS // 2, Y),  # of some rows
    (lambda row: (X[row], Y[row]), ROWS, [{"boxes": []}] * ROWS),
]


def test_targets_that_are_others_are_not_believed():
    for row, count, targets in NOT_THEIRS:
        for tiled in [1, 5]:
            with entry(row, tiled):
                data = Rows(lambda k, r=row, n=count: r(k % n), [*targets] * tiled, count * tiled)
                expected = [row(number % count)[1] for number in range(count * tiled)]
                np.testing.assert_array_equal(arrays_of(data)["y"], expected)
