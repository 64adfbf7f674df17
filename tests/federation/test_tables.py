"""Tables as files hold them, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from federation.data.source import Source
from federation.data.tables import own_table, read_table, table_data
from federation.data.values import Columns, Values
from federation.errors import DataError
from federation.experiment import Experiment
from tests.support import small, write_npz


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
    table = read_table(Source(csv(tmp_path / "a.csv", frame())), Columns("pressure", "hospital"))
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
    table = read_table(Source(path), Columns("reading", "task"))
    assert table.columns == ["age", "dose"]
    assert table.y.tolist() == [1, 4, 7, 10, 13, 16]
    assert table.task.tolist() == ["south", "north", "south", "north", "north", "south"]
    with pytest.raises(DataError, match="y has the columns math, reading, science: choose one"):
        read_table(Source(path), Columns("y", "task"))


def test_an_npz_file_without(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=np.ones((4, 3)), y=np.arange(4))
    table = read_table(Source(path), Columns("y", "task"), one_task=True)
    assert (table.columns, table.task) == (["x0", "x1", "x2"], None)


@pytest.mark.parametrize("declared", [(), ("yes", "no")])
@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_a_target_of_two_texts_is_zero_and_one_where_models_are_logistic(tmp_path, kind, declared):
    died = ["no", "yes", "yes", "no", "yes", "yes"]
    name = "died" if kind == "csv" else "y"
    columns = Columns(name, values=Values({name: declared} if declared else {}))
    if kind == "csv":
        columns = columns._replace(task="hospital")
        path = csv(tmp_path / "a.csv", frame().assign(died=died))
    else:
        arrays = {"x": np.arange(6.0)[:, None], "task": np.arange(6) % 2}
        path = write_npz(tmp_path / "a.npz", y=np.array(died, "S"), **arrays)
    table = read_table(Source(path), columns, family="logistic")
    first = declared[0] if declared else "no"
    assert table.y.tolist() == [float(cell != first) for cell in died]
    assert table.classes == (declared or ("no", "yes"))
    if kind == "csv":
        with pytest.raises(DataError, match="family=logistic takes text of two values"):
            read_table(Source(path), columns)


def test_a_target_of_text_that_is_not_of_two_values_is_refused(tmp_path):
    def read(*died, **values):
        source = csv(tmp_path / "a.csv", frame().assign(died=died))
        return read_table(
            Source(source), Columns("died", "hospital", values=Values(**values)), family="logistic"
        )

    with pytest.raises(DataError, match="died must have two values, got maybe, no, yes"):
        read("no", "yes", "maybe", "no", "no", "no")
    with pytest.raises(DataError, match="died must have two values, got yes"):
        read(*["yes"] * 6)
    with pytest.raises(DataError, match="died is missing in row 1"):
        read("no", None, "yes", "no", "no", "no")
    with pytest.raises(DataError, match="died is text, whose values other nodes may hold others"):
        read("no", "yes", "yes", "no", "no", "no", needed=True)
    with pytest.raises(DataError, match="died has 'no' in row 5 among numbers"):
        read(0, 1, 1, 0, 1, "no")


@pytest.mark.parametrize(
    ("declared", "classes"), [((), ()), (("no", "yes"), ("no", "yes")), (("1", "0"), ())]
)
@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_numbers_stay_and_are_called_what_is_declared(tmp_path, kind, declared, classes):
    # So a site with numbers has the kind of another with text.
    died, name = [0, 1, 1, 0, 1, 1], "died" if kind == "csv" else "y"
    if kind == "csv":
        path = csv(tmp_path / "a.csv", frame().assign(died=died))
    else:
        arrays = {"x": np.arange(6.0)[:, None], "hospital": np.arange(6) % 2}
        path = write_npz(tmp_path / "a.npz", y=np.array(died), **arrays)
    values = Values({name: declared} if declared else {})
    columns = Columns(name, "hospital", values=values)
    table = read_table(Source(path), columns, family="logistic", one_task=True)
    assert table.y.tolist() == died
    assert table.classes == classes


def test_columns_that_are_left_out(tmp_path):
    dataset = csv(tmp_path / "a.csv", frame().assign(name="Ann"))
    table = read_table(Source(dataset), Columns("pressure", "hospital"), drop=["name", "dose"])
    assert table.columns == ["age", "smoker"]
    assert table.x[0].tolist() == [50, 1]
    with pytest.raises(DataError, match="no feature 'nam' to be left out; it has age, dose"):
        read_table(Source(dataset), Columns("pressure", "hospital"), drop=["nam"])
    x, y = np.arange(6).reshape(3, 2), np.arange(3)
    numbers = write_npz(tmp_path / "a.npz", x=x, y=y, task=y)
    table = read_table(Source(numbers), Columns("y", "task"), drop=["x0"])
    assert (table.columns, table.x.tolist()) == (["x1"], [[1], [3], [5]])
    with pytest.raises(DataError, match="no feature 'task' to be left out; it has x0, x1"):
        read_table(Source(numbers), Columns("y", "task"), drop=["task"])
    with pytest.raises(DataError, match="y is one column, y: there is no 'z'"):
        read_table(Source(numbers), Columns("z", "task"))


def test_every_client_has_its_rows_and_some_are_held_out(tmp_path):
    data = pd.concat([frame()] * 10, ignore_index=True)
    data["age"] = np.arange(60) / 2
    dataset = csv(tmp_path / "a.csv", data)
    e = small(
        method="molar",
        dataset=dataset,
        num_clients=2,
        target_column="pressure",
        task_column="hospital",
        test_fraction=0.25,
    )
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
    with pytest.raises(DataError, match=r"must have a task column, 'task', .* it has age"):
        table_data(e)
    with pytest.raises(DataError, match="hospital is text, whose values other nodes may hold"):
        own_table(e, Source(good), 0)
    nobodys = csv(tmp_path / "nobodys.csv", frame().drop(columns="hospital"))
    with pytest.raises(DataError, match=r"nobodys\.csv must have a task column, 'task'"):
        table_data(e.model_copy(update={"dataset": nobodys}))
    e = e.model_copy(update={"task_column": "hospital", "num_clients": 3})
    with pytest.raises(DataError, match=r"must be the number of clients in csv:.*, 2, got 3"):
        table_data(e)


def test_a_client_of_few_rows_keeps_one_to_learn_from(tmp_path):
    few = csv(tmp_path / "few.csv", frame().iloc[:3])  # south has one row, north two
    e = small(method="molar", dataset=few, num_clients=2, target_column="pressure")
    held = table_data(e.model_copy(update={"task_column": "hospital", "test_fraction": 0.9}))
    assert [len(rows.y) for rows in held.train] == [1, 1]
    assert [rows and len(rows.y) for rows in held.test] == [1, None]


def test_rows_longer_than_the_header_are_no_table(tmp_path):
    # Else pandas takes the first columns for an index, and the others for what they are not.
    (tmp_path / "a.csv").write_text("x,y,task\n1,2,3,4\n1,2,3,4\n")
    with pytest.raises(DataError, match="its line 2 has 4 cells, and its first one 3"):
        read_table(Source(f"csv:{tmp_path}/a.csv"), Columns("y", "task"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.drop(columns="pressure"), "has no column 'pressure'; it has age, dose"),
        (lambda d: d.assign(dose=[*"12", "9" * 400, *"345"]), "dose is infinite in row 2"),
        (lambda d: d.assign(dose=[*"12", "high", *"345"]), "dose has 'high' in row 2 among"),
        (lambda d: d.rename(columns={"hospital": "h"}), "have a task column, 'hospital', that"),
        (
            lambda d: d.assign(hospital=[None, *d["hospital"][1:]]),
            "hospital is missing in row 0: a row needs one",
        ),
        (lambda d: d.assign(pressure="high"), "column pressure must hold numbers, got 'high'"),
    ],
)
def test_csv_files_that_cannot_be(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        read_table(
            Source(csv(tmp_path / "a.csv", change(frame()))), Columns("pressure", "hospital")
        )


def test_files_that_are_none(tmp_path):
    with pytest.raises(DataError, match=r"no\.csv cannot be read: No such file"):
        read_table(Source(f"csv:{tmp_path / 'no.csv'}"), Columns("y", "task"))
    (tmp_path / "empty.csv").touch()
    with pytest.raises(DataError, match=r"empty\.csv is empty"):
        read_table(Source(f"csv:{tmp_path / 'empty.csv'}"), Columns("y", "task"))
    with pytest.raises(
        DataError, match="dataset must be csv:PATH, npz:PATH, or simulated: sparse-l"
    ):
        read_table(Source("digits"), Columns("y", "task"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((4, 2))}, "it lacks y"),
        ({"x": np.ones(4), "y": np.ones(4)}, "x must be numbers of shape"),
        ({"x": np.ones((4, 2)), "y": np.ones(3)}, "y must have shape"),
        ({"x": np.ones((4, 2)), "y": np.ones(4), "task": np.ones(3)}, "task must have shape"),
        (
            {"x": np.ones((4, 2)), "y": np.ones(4), "x_names": np.array(["a"])},
            "x_names must name 2 columns, got a",
        ),
        (
            {"x": np.ones((4, 2)), "y": np.ones((4, 2)), "y_names": np.array(7)},
            "y_names must name 2 columns, got 7",
        ),
        ({"x": np.ones((0, 2)), "y": np.ones(0), "task": np.ones(0)}, "must hold some rows"),
        (
            {
                "x": np.ones((4, 2)),
                "y": np.ones(4),
                "task": np.arange(4),
                "task_names": np.array(["a"]),
            },
            "task must number the 1 task_names from 0",
        ),
    ],
)
def test_npz_files_that_cannot_be(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        read_table(
            Source(write_npz(tmp_path / "a.npz", **arrays)), Columns("y", "task"), one_task=True
        )


def test_simulated_sites_differ_in_two_coefficients_and_fit_their_family():
    e = small(method="molar", dataset="sparse-logistic", family="logistic", num_clients=3)
    held = table_data(e)
    assert set(np.unique(held.train[0].y)) == {0, 1}
    with pytest.raises(DataError, match="dataset must be sparse-linear for family = linear"):
        table_data(small(method="molar", dataset="sparse-logistic", num_clients=3))


def test_the_target_cannot_name_clients_too(tmp_path):
    (tmp_path / "rows.csv").write_text("x,y\n1,0\n2,1\n3,0\n4,1\n")
    e = Experiment(
        method="molar",
        dataset=f"csv:{tmp_path / 'rows.csv'}",
        target_column="y",
        task_column="y",
        num_clients=2,
    )
    with pytest.raises(DataError, match=r"task-column must be a column of csv:.* got 'y'"):
        table_data(e)
