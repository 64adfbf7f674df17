"""What takes the folder of a run takes one of every family, each beside all the others."""

import shutil
from types import SimpleNamespace
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest

import engram as front
from engram.runs.run import Run
from engram.runs.run_list import entries
from engram.runs.writer import RunWriter
from engram.settings.base import Method
from engram.settings.families import METHODS
from engram.settings.network import NetworkMethod
from engram.simulations.engine import simulate
from engram.studio.app import board
from engram.studio.live import federation
from engram.studio.run_index import RunIndex
from tests.methods.test_testing import TABLES
from tests.samples import entry
from tests.support import small

FAMILIES = {METHODS[name].plug_in: name for name in reversed(METHODS)}
OTHERS = [name for name in FAMILIES.values() if not issubclass(METHODS[name], NetworkMethod)]
BARE = "bare"  # of a method without metrics, as a plug-in's may be
RUNS = [*FAMILIES.values(), BARE]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # the tracker's own


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of each family, and one without metrics."""
    found = tmp_path_factory.mktemp("families")

    def run(method, name):
        simulate(
            small(**{"method": method, "num_clients": 4} | TABLES.get(method, {})), found / name
        )

    for name in FAMILIES.values():
        run(name, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(METHODS[OTHERS[0]], "metrics", Method.metrics)
        run(OTHERS[0], BARE)
    return found


def rows_for(run, path):
    """Writes rows without targets, such as a run's clients have; returns their file."""
    if columns := run.learned.kind.columns:
        pd.DataFrame(np.zeros((2, len(columns))), columns=columns).to_csv(path, index=False)
        return path
    np.savez(path.with_suffix(".npz"), x=run.learned.data.test.x[:2])
    return path.with_suffix(".npz")


@pytest.mark.parametrize("name", RUNS)
def test_every_command_that_takes_a_run_takes_it(engram, folder, tmp_path, name):
    run = front.load_run(shutil.copytree(folder, tmp_path / "all") / name)
    everyone = range(run.experiment.num_clients)
    client = next(c for c in everyone if run.learned.record.trains_network or run.learned.memory(c))
    for words in (
        ["runs", "all", "--json"],
        ["show", run.folder, "--json"],
        ["report", run.folder],
        ["status", run.folder],
        ["track", run.folder, "--to", "tensorboard"],
        ["export", run.folder, "--client", client, "--out", "model"],
        ["predict", "model", rows_for(run, tmp_path / "rows.csv")],
        ["run", "--resume", run.folder],
    ):
        status, _, err = engram(*words)
        assert (status, words, err) == (0, words, err)


def test_commands_for_networks_refuse_the_others_in_a_line(engram, folder):
    for name in OTHERS:
        for words in (["compare", name], ["tune", name], ["show", "--metric", folder / name]):
            with entry(words):
                status, _, err = engram(*words)
                assert status == 2
                assert len(err.splitlines()) == 1


def test_each_of_ours_has_a_metric_by_which_runs_are_listed(folder):
    scores = {entry.name: entry.score for entry in entries(folder)}
    for name in FAMILIES.values():
        record = Run.open(folder / name)
        main = record.metrics[0]
        assert main.meaning
        listed = main.name in record.results
        assert scores[name].startswith(f"{main.name} ") == listed
    assert scores[BARE] == ""


PAGES = ["/", *(f"{page}?name={{}}" for page in ("/run", "/client", "/data")), "/compare?run={}"]


def test_python_and_every_page_of_the_board_show_it(folder):
    index = RunIndex(folder)
    assert {one.name for one in index.everything()} == {*RUNS}
    visitor = board(index, None).server.test_client()
    for name in RUNS:
        run = front.load_run(folder / name)
        assert len(run.metrics) == len(Run.open(folder / name).rows()) > 0
        assert len(run.clients) == 4
        assert "finished" in repr(run)
        for page in PAGES:
            with entry(name, page):
                path, _, search = page.format(quote(name)).partition("?")
                told = visitor.post("/_dash-update-component", json=asked(path, search))
                assert told.status_code == 200
                assert name in told.text
                assert "cannot be shown" not in told.text


def asked(path, search):
    """What a browser asks the board for."""
    output = [{"id": "page", "property": "children"}, {"id": "stamp", "property": "data"}]
    inputs = {("address", "pathname"): path, ("address", "search"): f"?{search}"}
    inputs[("tick", "n_intervals")] = 0

    def given(values):
        return [{"id": i, "property": p, "value": v} for (i, p), v in values.items()]

    asked = {"output": "..page.children...stamp.data..", "outputs": output}
    asked |= {"inputs": given(inputs), "changedPropIds": ["address.pathname"]}
    return asked | {"state": given({("stamp", "data"): None})}


@pytest.mark.parametrize("name", RUNS)
def test_the_page_of_a_federation_shows_it_while_it_goes_on(folder, name, tmp_path, monkeypatch):
    whole = Run.open(folder / name)
    experiment = front.load_run(folder / name).experiment
    monkeypatch.setattr(type(experiment.own), "metrics", lambda own, shared: whole.metrics)
    record = RunWriter.create(tmp_path / name, experiment, engine="flower", training="a")
    for row in whole.rows():
        record.append(row)
    with record.hold():
        parts = federation(RunIndex(tmp_path), SimpleNamespace(server="fed", nodes=[]))
    figures = [part.figure for part in parts if getattr(part, "id", "") == f"figure-curve-{name}"]
    assert len(figures) == any(metric.name in whole.rows()[-1] for metric in whole.metrics)
    assert all(len(line.x) > 1 for figure in figures for line in figure.data)
