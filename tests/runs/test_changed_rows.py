"""Runs say when the rows are others than those that they have learned from, and go on with none."""

import hashlib
import json

import pytest

import engram as library
from engram.settings.errors import Refused, RunStopped
from tests.home.test_newcomers import hospitals, run_on

OTHERS = r"hospitals\.csv has other rows now than those that .*run has learned from"


def test_a_run_goes_on_with_the_rows_that_it_has_learned_from_alone(
    tmp_path, warnings_of_engram, engram
):
    run, path = run_on(hospitals(), tmp_path, method="fedavg"), tmp_path / "hospitals.csv"
    data = path.read_bytes()
    expected = hashlib.sha256(f"file {hashlib.sha256(data).hexdigest()}\n".encode()).hexdigest()
    assert json.loads((run.folder / "config.json").read_text())["rows"]["digest"] == expected
    library.load_run(run.folder)
    assert not warnings_of_engram.messages
    frame = hospitals()
    frame[[*reversed(frame.columns)]].to_csv(path, index=False)  # its columns in another order
    with pytest.raises(Refused, match=OTHERS + ": put them back, or begin a new run") as error:
        library.simulate(resume=run.folder, num_rounds=4, progress=False)
    assert "node" not in str(error.value)
    library.load_run(run.folder)
    assert sum("has other rows now" in line for line in warnings_of_engram.messages) == 1
    status, _, said = engram("run", "--resume", run.folder, "--set", "num-rounds=4")
    assert (status, "has other rows now" in said.splitlines()[-1]) == (2, True)
    status, out, _ = engram("export", run.folder, "--client", "s1", "--out", tmp_path / "model")
    assert (status, out.count("has other rows now")) == (0, 1)
    assert "has other rows now" in (tmp_path / "model" / "card.md").read_text()
    path.write_bytes(data)
    again = library.simulate(resume=run.folder, num_rounds=4, progress=False)
    assert again.results["rounds"] == 4
    run.export("s1", out=tmp_path / "other")
    assert "other rows" not in (tmp_path / "other" / "card.md").read_text()


def test_rows_that_change_while_a_run_goes_on_are_told(tmp_path, warnings_of_engram, monkeypatch):
    from engram.runs.writer import RunWriter

    finish = RunWriter.finish

    def changed(record, results):
        finish(record, results)
        hospitals(seed=1).to_csv(tmp_path / "hospitals.csv", index=False)

    monkeypatch.setattr(RunWriter, "finish", changed)
    run_on(hospitals(), tmp_path, method="fedavg")
    assert sum("has other rows now" in line for line in warnings_of_engram.messages) == 1


def test_another_order_of_columns_is_one_of_the_file(tmp_path):
    run, frame = run_on(hospitals(), tmp_path, method="fedavg"), hospitals()
    frame = frame[[*reversed(frame.columns)]]
    other = tmp_path / "other"
    other.mkdir()
    order = "sex=f, sex=m, weight, dose, age, and the run's in age, dose, weight, sex=f, sex=m"
    with pytest.raises(RunStopped, match=f"{order}: set input-columns, or reorder its") as error:
        run_on(frame, other, method="fedavg", start_from=str(run.folder))
    assert "node" not in str(error.value)


def test_a_comparison_goes_on_with_its_rows_alone(tmp_path, engram):
    hospitals().to_csv("t.csv", index=False)
    sets = "dataset=csv:t.csv partition=natural num-clients=6 target-column=state task-column=site"
    quick = "num-rounds=1 clients-per-round=3 hidden=6 local-steps=1 batch-size=4"
    words = [word for each in f"{sets} {quick}".split() for word in ("--set", each)]
    methods = ["fedavg", "local", "--references", "none", "--out", "both"]
    assert engram("compare", *methods, *words)[0] == 0
    hospitals(seed=1).to_csv("t.csv", index=False)
    status, _, said = engram("compare", "--resume", "both")
    assert (status, "t.csv has other rows now than those that both" in said) == (2, True)
