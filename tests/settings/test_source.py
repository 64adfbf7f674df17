"""The setting ``dataset`` as an object: parsed in one place, and carrying what a caller gave."""

import gc
import pickle
import re
import weakref

import numpy as np
import pandas as pd
import pytest

import engram
from engram.data.readers.in_memory import hold
from engram.data.source import FILES, Source
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from tests.samples import entry
from tests.source import source_files

QUICK = {"num_rounds": 1, "clients_per_round": 2, "hidden": "4", "progress": False}


def clients(seed=0):
    x = np.random.default_rng(seed).normal(size=(2, 20, 3)).astype(np.float32)
    return [(rows, np.arange(20) % 2) for rows in x]


TEXTS = [
    *((f"{kind}:a:b/c,d.x", kind, "a:b/c,d.x") for kind in FILES),
    ("hf:owner/name:subset", "hf", "owner/name:subset"),
    ("memory:0f", "memory", "0f"),
    ("permuted-npz:a.npz", "permuted", "npz:a.npz"),
    ("sparse-linear", "sparse", "linear"),
    ("csv:", "csv", ""),
    *((name, "", name) for name in ("csv", "permuted:digits", "CSV:a.csv", "tsv:a.tsv")),
    *((name, "", name) for name in ("two-cities", "")),
]


def test_a_text_is_parsed_and_stays_the_text():
    for text, kind, place in TEXTS:
        with entry(text, kind, place):
            source = Experiment(dataset=text).source
            assert (source.kind, source.place, source.rows) == (kind, place, None)
            assert source == text == Source.of(source) == str(source)


@pytest.mark.usefixtures("plug_ins")
def test_a_users_data_set_may_begin_as_a_kind_does():
    def permuted_digits():
        return clients()

    engram.data(permuted_digits)
    source = Source("permuted-digits")
    assert (source.kind, source.place, source.function) == ("", source, permuted_digits)


def test_files_are_named_for_other_folders_and_all_else_stays(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert Source("csv:a, b.csv").absolute() == f"csv:{tmp_path}/a, b.csv"
    for text in ("digits", "hf:a", "memory:0f", "permuted-npz:a.npz"):
        assert Source(text).absolute() == text
    assert Source("permuted-npz:a.npz").unpermuted.absolute() == f"npz:{tmp_path}/a.npz"


def test_no_other_module_parses_the_text():
    parses = re.compile(r"dataset\"?\]?\.(partition|rpartition|split|startswith|removeprefix)\(")
    assert not [path.name for path in source_files() if parses.search(path.read_text())]


def test_rows_are_carried_by_settings_and_go_with_them():
    source = hold({"y": np.arange(3), "x": np.eye(3)})
    experiment = Experiment(dataset=source, num_rounds=5)
    for same in (
        experiment.model_copy(update={"seed": 1}),
        Experiment.from_config(experiment.to_config()),
        experiment.on_machine({"device": "cpu"}),
    ):
        assert same.source.rows is source.rows
    there = pickle.loads(pickle.dumps(experiment)).source
    np.testing.assert_array_equal(there.rows["x"], np.eye(3))
    assert Source(experiment.to_config()["dataset"]).rows is None  # as from a record


def test_no_rows_stay_when_their_run_is_gone(tmp_path):
    run = engram.simulate(clients(), method="ditto", out=tmp_path / "run", **QUICK)
    rows = weakref.ref(run.experiment.source.rows["x"])
    assert run.personal_model(0)
    del run
    gc.collect()
    assert rows() is None


def test_a_run_that_is_opened_again_is_given_its_rows_again(tmp_path):
    run = engram.simulate(clients(), method="fedavg", out=tmp_path / "run", **QUICK)
    without, again = engram.load_run(run.folder), engram.load_run(run.folder, clients())
    expected = run.tuned.personal_model(1)  # fine-tuned on the client's rows
    for name, leaf in again.tuned.personal_model(1).items():
        np.testing.assert_array_equal(leaf, expected[name])
    assert without.model.keys() == expected.keys()
    message = r"^the rows of memory:\w{16} were given in memory: give them again, in Python, by "
    for made in (
        lambda: without.tuned.personal_model(1),
        lambda: engram.simulate(resume=run.folder, num_rounds=2, progress=False),
    ):
        with pytest.raises(Refused, match=rf"{message}engram.load_run\(RUN, data\), [^\n]*$"):
            made()
    with pytest.raises(Refused, match=r"^data must be those of the run, memory:\w+, got 'memory:"):
        engram.load_run(run.folder, clients(seed=1))
    assert not (run.folder / "client-1-model").exists()


def test_a_newcomers_columns_go_by_the_names_of_frames_that_were_given(tmp_path):
    frames = [(pd.DataFrame(x, columns=["a", "b", "c"]), y) for x, y in clients()]
    run = engram.simulate(frames, method="fedavg", out=tmp_path / "run", **QUICK)
    path = tmp_path / "new.csv"
    frames[0][0].assign(y=frames[0][1])[["c", "y", "a", "b"]].to_csv(path, index=False)
    # The run has recorded them: the frames need not be there.
    again = engram.load_run(run.folder).adapt(path, out=tmp_path / "again")
    frames[0][0].assign(y=frames[0][1]).to_csv(path, index=False)
    one, other = (
        engram.load_model(folder).state_dict()
        for folder in (run.adapt(path, out=tmp_path / "model"), again)
    )
    for name, leaf in one.items():
        np.testing.assert_array_equal(leaf, other[name])
