"""Tables as files hold them, and what is refused."""

from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest

from engram.data.schema.declared import declare
from engram.data.source import Source
from engram.data.tables.tables import own_table, read_table, table_data
from engram.settings.data import DataSettings
from engram.settings.errors import DataError
from tests.samples import entry
from tests.support import declared_values, small, write_npz


def columns(target="y", task="task", settings=MappingProxyType({}), **how):
    given = {"target_column": target, "task_column": task, **settings}
    return declare(DataSettings.model_validate(given), **how)


def frame():
    return pd.DataFrame(
        {
            "age": [50, 61, 47, 38, 55, 70],
            "dose": [0.5, 1.5, 1.0, 2.0, 0.0, 2.5],
            "smoker": [True, False, False, True, True, False],
            "hospital": ["north", "south", "north", "south", "south", "north"],
            "pressure": [120.0, 140, 130, 125, 150, 160],
        }
    )


def csv(path, data):
    data.to_csv(path, index=False)
    return f"csv:{path}"


def test_a_csv_file(tmp_path):
    table = read_table(Source(csv(tmp_path / "a.csv", frame())), columns("pressure", "hospital"))
    assert table.columns == ["age", "dose", "smoker"]
    assert table.x.tolist()[0] == [50, 0.5, 1]
    assert table.y.tolist() == [120, 140, 130, 125, 150, 160]
    assert table.task.tolist() == ["north", "south", "north", "south", "south", "north"]


def test_an_npz_file_with_names(tmp_path):
    path = write_npz(
        tmp_path / "a.npz",
        x=np.arange(12).reshape(6, 2),
        y=np.arange(18.0).reshape(6, 3),
        task=np.array([1, 0, 1, 0, 0, 1]),
        x_names=np.array(["age", "dose"]),
        y_names=np.array(["math", "reading", "science"]),
        task_names=np.array(["north", "south"]),
    )
    table = read_table(Source(path), columns("reading"))
    assert table.columns == ["age", "dose"]
    assert table.y.tolist() == [1, 4, 7, 10, 13, 16]
    assert table.task.tolist() == ["south", "north", "south", "north", "north", "south"]
    with pytest.raises(DataError, match="y has the columns math, reading, science: choose one"):
        read_table(Source(path), columns())


def test_an_npz_file_without(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=np.ones((4, 3)), y=np.arange(4))
    table = read_table(Source(path), columns(alone=True))
    assert (table.columns, table.task) == (["x0", "x1", "x2"], None)


def read_died(folder, kind, died, declared="", family="logistic", **how):
    """Reads a table with such targets, from a file in which they may be called otherwise."""
    arrays = {"x": np.arange(6.0)[:, None], "hospital": np.arange(6) % 2, "y": np.array(died)}
    if kind == "csv":
        path, target = csv(folder / "a.csv", frame().assign(died=died)), "died"
    else:
        path, target = write_npz(folder / "a.npz", **arrays), "y"
    settings = {"schema": declared_values(**{target: declared})} if declared else {}
    return read_table(Source(path), columns(target, "hospital", settings, **how), family=family)


WORDS, BITS = ["no", "yes", "yes", "no", "yes", "yes"], [0, 1, 1, 0, 1, 1]
TWO_VALUES = [
    (WORDS, "", BITS, ("no", "yes")),
    (WORDS, "yes|no", [1, 0, 0, 1, 0, 0], ("yes", "no")),
    # Numbers stay, so that a site with numbers has the kind of another with text.
    (BITS, "", BITS, ()),
    (BITS, "no|yes", BITS, ("no", "yes")),
    (BITS, "1|0", BITS, ()),
    ([*map(bool, BITS)], "", BITS, ()),
]


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_targets_of_two_values(tmp_path, kind):
    for died, declared, y, classes in TWO_VALUES:
        with entry(died, declared):
            table = read_died(tmp_path, kind, died, declared=declared)
            assert (table.y.tolist(), table.classes) == (y, classes)


NOT_TWO = [
    ("no yes maybe no no no", {}, "died must have two values, got maybe, no, yes"),
    ("yes yes yes yes yes yes", {}, "died must hold at least 2 classes, got one"),
    ("no NA yes no no no", {}, "died is missing in row 3"),
    ("no yes yes no no no", {"alone": True, "drop": ("smoker",)}, "died is text, whose values"),
    ("0 1 1 0 1 no", {}, "died has 'no' in row 7 among numbers"),
    ("no yes yes no no no", {"family": "linear"}, "text is a target of .* family=logistic"),
]


def test_targets_that_are_not_of_two_values_are_refused(tmp_path):
    for died, how, message in NOT_TWO:
        with entry(died, how), pytest.raises(DataError, match=message):
            read_died(tmp_path, "csv", died.split(), **how)


def test_columns_that_are_left_out(tmp_path):
    dataset = csv(tmp_path / "a.csv", frame().assign(name="Ann"))
    table = read_table(Source(dataset), columns("pressure", "hospital", drop=("name", "dose")))
    assert table.columns == ["age", "smoker"]
    assert table.x[0].tolist() == [50, 1]
    with pytest.raises(DataError, match="no feature 'nam' to be left out; it has age, dose"):
        read_table(Source(dataset), columns("pressure", "hospital", drop=("nam",)))
    x, y = np.arange(6).reshape(3, 2), np.arange(3)
    numbers = write_npz(tmp_path / "a.npz", x=x, y=y, task=y)
    table = read_table(Source(numbers), columns(drop=("x0",)))
    assert (table.columns, table.x.tolist()) == (["x1"], [[1], [3], [5]])
    with pytest.raises(DataError, match="no feature 'task' to be left out; it has x0, x1"):
        read_table(Source(numbers), columns(drop=("task",)))
    with pytest.raises(DataError, match="y is one column, y: there is no 'z'"):
        read_table(Source(numbers), columns("z"))


def test_every_client_has_its_rows_and_some_are_held_out(tmp_path):
    data = pd.concat([frame()] * 10, ignore_index=True)
    data["age"] = np.arange(60) / 2
    dataset = csv(tmp_path / "a.csv", data)
    named = {"target_column": "pressure", "task_column": "hospital"}
    e = small(method="molar", dataset=dataset, num_clients=2, test_fraction=0.25, **named)
    held = table_data(e)
    assert held.names == {0: "north", 1: "south"}
    for client, name in held.names.items():
        ages = np.r_[held.train[client].x[:, 0], held.test[client].x[:, 0]]
        own = data[data["hospital"] == name]
        assert sorted(ages) == own["age"].tolist()
        assert len(held.test[client].y) == round(0.25 * len(own))
    again = table_data(e)
    assert np.array_equal(again.train[0].x, held.train[0].x)
    # A node that brings the same rows as its own holds the same rows out.
    alone = csv(tmp_path / "south.csv", data[data["hospital"] == "south"])
    own = own_table(e, Source(alone), 1)
    assert np.array_equal(own.train[1].x, held.train[1].x)
    assert own.train[0] is None


def test_tables_that_cannot_be(tmp_path):
    good = csv(tmp_path / "good.csv", frame())
    e = small(method="molar", dataset=good, num_clients=2, target_column="pressure")
    with pytest.raises(DataError, match="hospital is text, whose values other nodes may hold"):
        own_table(e, Source(good), 0)
    nobodys = csv(tmp_path / "nobodys.csv", frame().drop(columns="hospital"))
    with pytest.raises(DataError, match=r"nobodys\.csv must have task, as task-column"):
        table_data(e.model_copy(update={"dataset": nobodys}))
    e = e.model_copy(update={"task_column": "hospital", "num_clients": 3})
    with pytest.raises(DataError, match=r"must be the number of clients in csv:.*, 2, got 3"):
        table_data(e)


def test_all_columns_that_are_no_numbers_are_named(tmp_path):
    data = frame().assign(age=["?", *"23x56"], dose=["b", *"12345"])
    message = r"age has '\?' in row 2, 'x' in row 5 among numbers: .* dose has 'b' in row 2 among"
    with pytest.raises(DataError, match=message):
        read_table(Source(csv(tmp_path / "a.csv", data)), columns("pressure", "hospital"))


def test_numbers_above_all_floats_are_infinite(tmp_path):
    path = csv(tmp_path / "a.csv", frame().assign(dose=[*"12", "9" * 400, *"345"]))
    with pytest.raises(DataError, match="dose is infinite in row 4"):
        read_table(Source(path), columns("pressure", "hospital"))


def test_a_client_of_few_rows_keeps_one_to_learn_from(tmp_path):
    few = csv(tmp_path / "few.csv", frame().iloc[:3])  # south has one row, north two
    e = small(method="molar", dataset=few, num_clients=2, target_column="pressure")
    held = table_data(e.model_copy(update={"task_column": "hospital", "test_fraction": 0.9}))
    assert [len(rows.y) for rows in held.train] == [1, 1]
    assert [rows and len(rows.y) for rows in held.test] == [1, None]


def test_other_data_sets_are_refused():
    with pytest.raises(DataError, match="dataset must be csv:PATH, xlsx:PATH, npz:PATH, or simul"):
        read_table(Source("digits"), columns())


FOUR = {"x": np.ones((4, 2)), "y": np.ones(4)}
NO_TABLES = [
    ({"x": np.ones((4, 2))}, "it lacks y"),
    ({"x": np.ones(4), "y": np.ones(4)}, "x must be numbers of shape"),
    (FOUR | {"y": np.ones(3)}, "y must have shape"),
    (FOUR | {"task": np.ones(3)}, "task must have shape"),
    (FOUR | {"x_names": np.array(["a"])}, "x_names must name 2 columns, got a"),
    (FOUR | {"y": np.ones((4, 2)), "y_names": np.array(7)}, "y_names must name 2 columns, got 7"),
    ({"x": np.ones((0, 2)), "y": np.ones(0), "task": np.ones(0)}, "must hold some rows"),
    (FOUR | {"task": np.arange(4), "task_names": np.array(["a"])}, "number the 1 task_names from"),
]


def test_npz_files_that_cannot_be(tmp_path):
    for arrays, message in NO_TABLES:
        with entry(message), pytest.raises(DataError, match=message):
            read_table(Source(write_npz(tmp_path / "a.npz", **arrays)), columns(alone=True))


def test_simulated_sites_differ_in_two_coefficients_and_fit_their_family():
    e = small(method="molar", dataset="sparse-logistic", family="logistic", num_clients=3)
    held = table_data(e)
    assert set(np.unique(held.train[0].y)) == {0, 1}
    with pytest.raises(DataError, match="dataset must be sparse-linear for family = linear"):
        table_data(small(method="molar", dataset="sparse-logistic", num_clients=3))


def test_the_target_cannot_name_clients_too():
    with pytest.raises(DataError, match="task-column must be another column than target-column"):
        columns("y", "y")
