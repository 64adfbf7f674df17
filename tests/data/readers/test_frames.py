"""Data frames as rows: columns by their names, cells as pandas means them, as in a CSV file."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from engram.data.load_federation import federated_data, own_data
from engram.data.readers.in_memory import arrays_of, hold
from engram.data.source import Source
from engram.data.tables.tables import table_data
from engram.settings.errors import DataError, Refused
from engram.settings.experiment import Experiment
from tests.samples import entry
from tests.support import declared_values

SITES = {"north": 40, "south": 24, "east": 32}
THREE = {"num_clients": 3, "clients_per_round": 3, "partition": "natural"}
QUICK = {"num_rounds": 2, "local_steps": 2, "batch_size": 4, "eta": 0.1, "progress": False}


def site(name):
    """Returns a site's inputs and targets; the east has nobody who smokes now."""
    rng = np.random.default_rng(SITES[name])
    rows = SITES[name]
    x = pd.DataFrame(
        {
            "age": rng.normal(size=rows).round(2),
            "stay": rng.integers(9, size=rows),
            "icu": rng.random(rows) < 0.5,
            "smoker": rng.choice(["never", "former", "now"][: 2 if name == "east" else 3], rows),
        },
        index=rng.permutation(rows) + 1000,
    )
    return x, (x["age"] + x["icu"] > 0.5).astype(int)


def clients(change=lambda name, x: x, target=lambda y: y):
    found = {}
    for name in SITES:
        x, y = site(name)
        found[name] = change(name, x), target(y)
    return found


def loaded(data, **settings):
    own = {"method": "fedavg", "protocol": "standard", **THREE, **settings}
    return federated_data(Experiment(dataset=hold(arrays_of(data)), **own))


def rows_of(split, client):
    x, y = split.take(torch.from_numpy(np.sort(split.rows[client])))
    return x.numpy(), y.numpy()


def assert_same(one, other):
    assert (one.kind.inputs, one.schema) == (other.kind.inputs, other.schema)
    for split, like in ((one.train, other.train), (one.test, other.test)):
        for client in range(3):
            for mine, theirs in zip(rows_of(split, client), rows_of(like, client), strict=True):
                np.testing.assert_array_equal(mine, theirs)


def in_numbers(x):
    """Returns a site's rows as numbers, each value of text one column, by hand."""
    kinds = [(x["smoker"].to_numpy() == kind) for kind in ("former", "never", "now")]
    return np.column_stack([x["age"], x["stay"], x["icu"], *kinds]).astype(np.float32)


def test_frames_are_the_numbers_that_pandas_means():
    whole = loaded(clients())
    plain = loaded({name: (in_numbers(x), y.to_numpy()) for name, (x, y) in clients().items()})
    smoker = ("smoker=former", "smoker=never", "smoker=now")
    assert whole.schema.inputs == ("age", "stay", "icu", *smoker)
    assert dict(whole.names) == dict(enumerate(SITES))
    assert_same(whole._replace(schema=None), plain)


def cast(site, **types):
    return lambda name, x: x.astype(types) if name == site else x


TYPES = {
    "columns in another order": lambda name, x: x[list(x)[:: 1 if name == "north" else -1]],
    "categories, each site's own": lambda _, x: x.astype({"smoker": "category"}),
    "categories beside text": cast("east", smoker="category"),
    "nullable types": lambda _, x: x.convert_dtypes(),
    "objects": lambda _, x: x.astype(object),
    "truth values as numbers in one": cast("south", icu=float),
    "names that are no text": lambda _, x: x.rename(columns={"age": 1}),
}


def test_the_same_cells_of_any_type_are_the_same_rows():
    plain = loaded(clients())
    for name, change in TYPES.items():
        with entry(name):
            found = loaded(clients(change))
            age, *others = found.schema.columns
            schema = replace(found.schema, columns=(replace(age, name="age"), *others))
            assert_same(found._replace(schema=schema), plain)


def test_a_category_that_no_row_has_is_an_input_of_its_own():
    kinds = pd.CategoricalDtype(["never", "former", "now", "unknown"])
    found = loaded(clients(lambda _, x: x.astype({"smoker": kinds})))
    kinds = ("former", "never", "now", "unknown")
    assert found.schema.inputs[3:] == tuple(f"smoker={kind}" for kind in kinds)
    assert not found.train.x[:, 6].any()


def in_another_order(part):
    return part.sample(frac=1, random_state=0)


def test_rows_of_frames_and_series_go_together_by_their_labels():
    for change, target in (
        (lambda _, x: x, in_another_order),
        (lambda _, x: in_another_order(x), lambda y: y),
        (lambda _, x: x, lambda y: in_another_order(y.to_frame())),
    ):
        for name, (x, y) in clients(change, target).items():
            found, like = arrays_of((x, y)), site(name)[1]
            pd.testing.assert_frame_equal(found["x"], x.reset_index(drop=True))
            np.testing.assert_array_equal(found["y"], like.loc[x.index])


def test_equal_indexes_and_none_go_together_by_place():
    x, y = site("north")
    for index in (np.zeros(len(x)), np.arange(len(x)), x.index):
        found = arrays_of((x.set_axis(index), y.set_axis(index)))
        np.testing.assert_array_equal(found["y"], y)
    np.testing.assert_array_equal(arrays_of((in_another_order(x), y.to_numpy()))["y"], y)


def test_other_labels_are_refused_with_the_way():
    x, y = site("north")
    mixed = {"age": x["age"], "icu": in_another_order(x["icu"])}
    words = (
        "y of client north must have the labels of x's index, each once: give "
        r"y\.set_axis\(x\.index\) if its rows are in the same order"
    )
    for target in (
        lambda y: y.reset_index(drop=True),
        lambda y: y.set_axis([y.index[1], *y.index[1:]]),
        lambda y: y.set_axis(y.index.astype(str)),
    ):
        with pytest.raises(DataError, match=words):
            arrays_of(clients(target=target))
        with pytest.raises(DataError, match=r"y of data must have the labels of x\.age's index"):
            arrays_of((mixed, target(y)))


def holes(x):
    """The cells of age in row 3, and of smoker in row 2."""
    row = np.arange(len(x))
    return pd.DataFrame(False, x.index, x.columns).assign(age=row == 3, smoker=row == 2)


FAULTS = {
    "columns of other names, all of them": (
        lambda name, x: {
            "south": x.rename(columns={"age": "years", "icu": "unit"}),
            "east": x.drop(columns="stay"),
        }.get(name, x),
        "client south lacks age, icu and has years, unit, which client north lacks; "
        "client east lacks stay",
    ),
    "a column twice": (
        lambda _, x: x.set_axis(["age", "stay", "icu", "age"], axis=1),
        "client north has several columns age",
    ),
    "missing": (
        lambda name, x: x.mask(holes(x)) if name == "east" else x,
        "age is missing in row 3 of client east, smoker is missing in row 2 of client east: set",
    ),
    "lists": (
        lambda _, x: x.assign(scan=[[1, 2]] * len(x)),
        r"column scan must be one value in each cell, got \[1, 2\]",
    ),
    "the clients twice": (lambda _, x: x.assign(task=0), "must name the clients of rows once"),
}


def test_faults_of_frames_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, (change, message) in FAULTS.items():
        with entry(name), pytest.raises(Refused, match=f"^[^\n]*{message}[^\n]*$"):
            engram.simulate(clients(change), method="fedavg", model="linear", **QUICK)
    assert not list(tmp_path.iterdir())


def test_frames_beside_arrays_and_among_several_inputs_are_refused():
    mixed = clients(lambda name, x: x if name == "east" else in_numbers(x))
    with pytest.raises(DataError, match="x must be data frames of all clients, or arrays of all"):
        arrays_of(mixed)
    x, y = site("north")
    with pytest.raises(DataError, match=re.escape("x.a of data must be an array")):
        arrays_of(({"a": x, "b": in_numbers(x)}, y))


TARGETS = {
    "nullable": lambda y: y.astype("Int64"),
    "truth values": lambda y: y.astype(bool),
    "categories of numbers": lambda y: y.astype("category"),
    "a frame of one column": lambda y: y.to_frame("ill"),
}


def test_targets_are_taken_as_pandas_means_them():
    for name, change in TARGETS.items():
        with entry(name):
            assert_same(loaded(clients(target=change)), loaded(clients()))


def test_columns_of_targets_go_by_name():
    def two(turn):
        def pair(y):
            frame = pd.DataFrame({"a": y * 1.5, "b": y - 0.25})
            return frame[["b", "a"]] if turn and len(y) == SITES["south"] else frame

        return loaded(clients(target=pair), task="regression")

    assert two(turn=True).outputs == 2
    assert_same(two(turn=True), two(turn=False))


def test_missing_targets_and_dates_are_refused():
    def missing(y):
        return y.astype("Int64").where(np.arange(len(y)) != 2)

    with pytest.raises(DataError, match="y of client north is missing in row 2"):
        arrays_of(clients(target=missing))
    with pytest.raises(DataError, match="y of client north must be numbers, or"):
        arrays_of(clients(target=lambda y: pd.Series(pd.Timestamp(0), index=y.index)))


def test_targets_beside_a_frame_are_asked_about_as_its_columns_are():
    def of(series, change=lambda name, x: x):
        return {name: (change(name, x), series(x)) for name, (x, _) in clients().items()}

    def years(x):
        return pd.Series(np.random.default_rng(1).integers(20, 90, len(x)), x.index)

    with pytest.raises(DataError, match=r"column y .* different whole numbers with gaps"):
        loaded(of(years))
    assert loaded(of(years), task="regression").outputs == 1
    every = set().union(*(years(x) for x, _ in clients().values()))
    assert loaded(of(lambda x: years(x).astype("category"))).outputs == len(every)
    copies = clients(lambda name, x: x.assign(code=np.where(site(name)[1], "ill", "well")))
    with pytest.raises(DataError, match=r"column code .* tells y by itself"):
        loaded(copies)


def test_sites_that_code_two_classes_differently_are_named():
    shifted = {name: (x, y + (name == "south")) for name, (x, y) in clients().items()}
    with pytest.raises(DataError, match=r"y is 0 or 1 at client .*, and 1 or 2 at client south"):
        loaded(shifted)


def test_durations_periods_and_bytes_are_refused_with_the_way():
    def changed(_, x):
        days = pd.to_timedelta(x["stay"], unit="D")
        codes = {"wave": np.arange(len(x)) * 1j, "code": [b"a"] * len(x)}
        return x.assign(stay=days, month=pd.Period("2024-05", "M"), **codes)

    with pytest.raises(DataError, match="column stay must be numbers") as caught:
        loaded(clients(changed))
    for way in (
        "frame['stay'] / pandas.Timedelta(days=1)",
        "frame['month'].dt.to_timestamp()",
        "got complex128: give its real and its imaginary part",
        "frame['code'].str.decode('utf-8')",
    ):
        assert way in str(caught.value)


def test_another_cell_or_name_is_another_data_set():
    def digest(change=lambda _, x: x):
        return hold(arrays_of(clients(change)))

    def other(_, x):
        return x.assign(stay=np.where(np.arange(len(x)) == 5, 77, x["stay"]))

    names = [digest(), digest(other), digest(lambda _, x: x.rename(columns={"age": "years"}))]
    assert len(set(names)) == 3
    assert digest() == names[0]


def test_methods_of_tables_take_frames_too():
    data = hold(arrays_of(clients(TYPES["columns in another order"])))
    table = table_data(Experiment(dataset=data, method="molar", num_clients=3))
    assert table.columns == ["age", "stay", "icu", "smoker=never", "smoker=now"]
    for client, name in table.names.items():
        one, other = table.train[client], table.test[client]
        x, rows = np.delete(in_numbers(site(name)[0]), 3, axis=1), np.concatenate([one.x, other.x])
        np.testing.assert_allclose(rows[np.lexsort(rows.T)], x[np.lexsort(x.T)])


def test_nodes_with_columns_of_other_names_differ_and_those_in_another_order_do_not(tmp_path):
    def kind(name, columns):
        x, y = site(name)
        x = x.rename(columns={"age": "years"} if "years" in columns else {})[columns]
        x.assign(y=y.to_numpy()).to_csv(path := tmp_path / f"{name}.csv", index=False)
        e = Experiment(method="fedavg", protocol="standard", num_classes=2, **THREE)
        return own_data(e, Source(f"csv:{path}"), 0).kind

    north = kind("north", ["age", "stay", "icu"])
    assert north.schema.inputs == ("age", "icu", "stay")
    assert kind("south", ["stay", "age", "icu"]) == north
    words = "it lacks the inputs age, and has years besides"
    assert kind("south", ["years", "stay", "icu"]).unlike(north) == words
    words = "its inputs lack names, and most nodes' have them: age, icu, stay"
    unnamed = north._replace(schema=None)
    assert unnamed.unlike(north) == f"{words} (in .npz files, x_names)"


@pytest.mark.usefixtures("plug_ins")
def test_a_node_that_sees_one_clients_frame_reads_it_as_all_are_read():
    @engram.data
    def sites(client):
        x, y = site(list(SITES)[client])
        x = x.convert_dtypes()
        x.iloc[::5, 0] = pd.NA
        return x[list(x)[:: 1 if client == 0 else -1]], y.map({0: "well", 1: "ill"})

    schema = declared_values(smoker="never|former|now", y="well|ill")
    own = {"schema": schema, "input_columns": "age,stay,icu,smoker", "missing": "median", **THREE}
    e = Experiment(dataset="sites", method="fedavg", protocol="standard", **own)
    whole = federated_data(e)
    for client in range(3):
        own = federated_data(e, hosted=[client])
        assert own.kind == whole.kind
        for split, like in ((own.train, whole.train), (own.test, whole.test)):
            for mine, theirs in zip(rows_of(split, client), rows_of(like, client), strict=True):
                np.testing.assert_array_equal(mine, theirs)
    other = federated_data(e.model_copy(update={"input_columns": ""}), hosted=[1])
    assert "its inputs are in the order" in other.kind.unlike(whole.kind)
    with pytest.raises(DataError, match="smoker is text, whose values other nodes may hold others"):
        federated_data(e.model_copy(update={"schema": declared_values(y="well|ill")}))
