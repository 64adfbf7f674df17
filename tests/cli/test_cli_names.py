"""Names of clients in tables and figures, as their data give them."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from engram.runs.run import Run
from tests.cli.words import let
from tests.support import write_npz

NAMED = ["park", "[red]elm", "$oak"]


@pytest.fixture
def hospitals():
    """A table of three hospitals, whose names are no markup and no mathematics."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(90, 3)) / 2
    y = (x.sum(axis=1) > 0.75).astype(int)
    task = np.repeat([2, 0, 1], 30)
    write_npz(Path("h.npz"), x=x, y=y, task=task, task_names=np.array(NAMED))
    pd.DataFrame(x).assign(y=y, task=np.array(NAMED)[task]).to_csv("h.csv", index=False)
    return let("num-clients=3", "dataset=npz:h.npz")


def test_clients_keep_the_names_that_their_data_give_them(engram, hospitals):
    natural = [*hospitals, *let("partition=natural", "clients-per-round=3", "num-rounds=2")]
    assert engram("run", "fedavg", *natural, "--out", "f")[0] == 0
    record = Run.open(Path("f"))
    assert record.names == dict(enumerate(NAMED))
    assert record.results["clients"]["names"] == NAMED
    shown = engram("status", "f")[1]
    assert all(name in shown for name in NAMED)
    status, _, err = engram("run", "fedavg", *natural, "--set", "eta=1e30")
    assert status == 1
    assert "the models of clients [park, [red]elm, $oak] became non-finite" in err
    _, out, _ = engram("data", *natural, "--out", "f.png", "--json")
    assert all(name in out for name in NAMED)
    assert json.loads(out.splitlines()[-1])["names"] == NAMED


def test_classes_keep_the_names_that_their_data_give_them(engram):
    kinds = np.array(["[red]ant", "bee"])[np.arange(80) % 2]
    write_npz(Path("k.npz"), x=np.arange(160.0).reshape(80, 2), y=kinds)
    given = let("dataset=npz:k.npz", "partition=blocks", "num-clients=2", "clients-per-round=2")
    given = [*given, *let("validation-fraction=0")]
    _, out, _ = engram("data", *given, "--out", "k.png", "--json")
    found = json.loads(out.splitlines()[-1])
    assert found["classes"] == ["[red]ant", "bee"]
    ants, bees = found["training"][0]
    assert f"[red]ant: {ants}, bee: {bees}" in out
    assert ants + bees == 24  # a half of 60 % of 80


def test_sites_that_numbers_name_are_found_by_these(engram, hospitals):
    table = pd.read_csv("h.csv")
    numbers = dict(zip(NAMED, (10, 2, 7), strict=True))
    table.assign(task=table["task"].map(numbers)).to_csv("h.csv", index=False)
    words = [*hospitals, *let("dataset=csv:h.csv", "partition=natural", "clients-per-round=3")]
    assert engram("run", "ditto", *words, *let("num-rounds=2"), "--out", "d")[0] == 0
    assert Run.open(Path("d")).names == {0: "2", 1: "7", 2: "10"}
    assert engram("show", "d")[1].endswith("next: engram export d --client 2\n")
    assert engram("export", "d", "--client", "2")[0] == 0  # client 10 is the one in position 2
    card = Path("client-2-model/card.md").read_text()
    assert "rows of client 2" in card
    status, _, err = engram("export", "d", "--client", "0")
    assert (status, err) == (2, "engram: client must be one of 2, 7, 10, got '0'\n")
    _, _, err = engram("run", "fedavg", *words, "--set", "eta=1e30")
    assert "the models of clients [2, 7, 10] became non-finite" in err


@pytest.mark.usefixtures("drawn")
def test_tables_and_plots_call_sites_by_their_names(engram, hospitals, monkeypatch):
    labels = []
    draw = Axes.set_xticks
    monkeypatch.setattr(
        Axes, "set_xticks", lambda *args, **how: (labels.append(args[2:]), draw(*args, **how))[1]
    )
    assert engram("run", "molar", *hospitals, "--out", "m")[0] == 0
    assert sorted(labels[0][0]) == sorted(NAMED)
    assert set(Run.open(Path("m")).results["clients"]["names"]) == set(NAMED)
    _, out, _ = engram("run", "molar-bandit", *hospitals, "--set", "num-rounds=3", "--out", "b")
    assert all(re.search(rf"^ *{re.escape(name)} +\d ", out, re.MULTILINE) for name in NAMED)
    csv = [*hospitals, *let("dataset=csv:h.csv", "num-rounds=3")]
    _, out, _ = engram("run", "meta-ban", *csv, "--out", "t")
    assert all(re.search(rf"^ *{re.escape(name)} +\d ", out, re.MULTILINE) for name in NAMED)


def test_a_site_that_is_left_out_is_named(engram, hospitals):
    table = pd.read_csv("h.csv")
    table.loc[0, "y"] = -1  # a row of $oak, which is no count
    table.to_csv("h.csv", index=False)
    words = [*hospitals, *let("dataset=csv:h.csv", "family=poisson")]
    _, _, err = engram("run", "molar", *words, "--out", "m")
    assert re.search(r"client \$oak is left out: ", err)
    assert re.search(r"client \$oak left out: ", err)


@pytest.mark.usefixtures("plug_ins")
def test_a_librarys_warning_is_one_line_without_a_path(engram, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # puts it back
    Path("warns.py").write_text("import warnings\nwarnings.warn('did not\\nconverge')\n")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        status, _, err = engram("--plugin", "warns", "methods")
    assert (status, err) == (0, "engram: UserWarning: did not converge\n")
