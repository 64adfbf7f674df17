"""A family of methods that is registered from outside: nothing of the house knows it.

Each client sends the means of its columns, and the server answers with the mean of these. The
distance of a client's own means from the shared ones is its score.
"""

import json
from functools import partial

import numpy as np
import pytest
from flwr.app import ConfigRecord, MessageType, RecordDict
from rich.table import Table

from client.hosts import HOSTS, hosts
from client.hosts.rows import read_tables
from client.requests import answered, round_of, split
from federation.data.tables import table_data
from federation.experiment import Experiment
from federation.methods import METHODS, register
from federation.methods.base import NO_NETWORK, Method
from federation.roster import Kind, describe_node
from federation.settings.fields import Float, Int
from federation.wire import CLIENTS, floats_record, read_floats
from server.record import RunRecord
from simulations.engine import simulate
from simulations.reports import REPORTS, reports
from simulations.reports.sites import draw_curve, show_sites
from simulations.terminal import show_found
from strategies import STRATEGIES, strategies
from strategies.sites import SiteStrategy, read_split, sites_in_words

MEANS = "means"


class Means(Method):
    """The method: its name, and a setting of its own."""

    name = plug_in = "column-means"
    meaning = "the mean of all clients' column means"
    source = "this file"
    unread = NO_NETWORK
    keep: Float = 0.5
    rows_at_most: Int = 100


class Sites:
    """Clients with tables."""

    def __init__(self, opening):
        self.own = opening.experiment.of(Means)
        self.data = read_tables(opening)

    def describe(self, hosted):
        clients = {client: len(self.data.train[client].y) for client in hosted}
        return describe_node(clients, Kind(columns=tuple(self.data.columns)))

    def train(self, requests):
        return [answered(request, partial(self._reply, request)) for request in requests]

    evaluate = train

    def _reply(self, request, clients):
        rows = [self.data.train[client].x[: self.own.rows_at_most] for client in clients]
        details = split(round_of(request.message.content), clients, {})
        found = floats_record(means=np.array([x.mean(axis=0) for x in rows]))
        return RecordDict({MEANS: found, CLIENTS: ConfigRecord(details)})


class Averaging(SiteStrategy):
    """The server: it moves what is shared towards the mean of what clients send."""

    def __init__(self, sites, *, least, keep):
        super().__init__(sites, least=least)
        self.keep, self.found, self.state = keep, {}, {}

    @classmethod
    def build(cls, experiment, roster, noise):
        keep = experiment.of(Means).keep
        return cls(roster.sites(), least=experiment.min_clients, keep=keep)

    def init(self):
        return floats_record(means=np.zeros(len(self.sites.columns)))

    def configure_train(self, server_round, arrays, config, grid):
        self.shared = read_floats(arrays, "means", (len(self.sites.columns),))
        return self.ask(MessageType.TRAIN, server_round, config, grid, lambda clients: {})

    def aggregate_train(self, server_round, replies):
        self._gather(server_round, replies)
        self.check_enough(len(self.found))
        mean = np.mean(list(self.found.values()), axis=0)
        shared = self.keep * self.shared + (1 - self.keep) * mean
        return floats_record(means=shared), {"sites": len(self.found)}

    def configure_evaluate(self, server_round, arrays, config, grid):
        return self.configure_train(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        self._gather(server_round, replies)

    def _gather(self, server_round, replies):
        self.found = {}
        self.left_out = self.gather(server_round, replies, self._read)

    def _read(self, content, clients):
        ids, _, _ = read_split(content, clients)
        means = read_floats(content[MEANS], "means", (len(ids), len(self.sites.columns)))
        self.found |= dict(zip(ids, means, strict=True))

    @property
    def evaluated(self):
        return bool(self.found)

    def scores(self):
        each = [np.linalg.norm(own - self.shared) for own in self.found.values()]
        return {"distance": float(np.mean(each))}

    def results(self, arrays, row):
        means = dict(zip(self.sites.columns, self.shared.tolist(), strict=True))
        return {"sites": row["sites"], "left-out": row["absent"], **self.scores(), "means": means}

    @staticmethod
    def in_words(row):
        return f"{sites_in_words(row)}, distance {row['distance']:.4g}" if "distance" in row else ""


def table(found, settings):
    made = Table("column", "mean")
    for column, mean in found["means"].items():
        made.add_row(column, f"{mean:.4g}")
    return made


def draw(record, found):
    rows = [row for row in record.rows() if row["round"]]
    x, y = ([row[name] for row in rows] for name in ("round", "distance"))
    draw_curve(record.folder / "distance.png", x, y, "o-", {"xlabel": "round"})
    return ["distance.png"]


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    for known in (METHODS, HOSTS, STRATEGIES, REPORTS):  # and forgotten after the test
        monkeypatch.setitem(known, Means.plug_in, None)
    del METHODS[Means.plug_in]
    register(Means)
    hosts(Means.plug_in)(Sites)
    strategies(Means.plug_in)(Averaging)
    reports(Means.plug_in)(lambda folder, as_json: show_sites(folder, as_json, table, draw))


def experiment(**settings):
    given = {"dataset": "sparse-linear", "num_clients": 6, "num_rounds": 5, "eval_every": 1}
    return Experiment(method="column-means", **given | settings)


def test_it_runs_resumes_and_is_shown(tmp_path, capsys):
    whole = simulate(experiment(), tmp_path / "whole")
    rows = RunRecord.open(tmp_path / "whole").rows()
    # From zero, each round halves what is left to the mean of all clients' means.
    assert rows[5]["distance"] < rows[1]["distance"] < rows[0]["distance"]
    simulate(experiment(num_rounds=2), tmp_path / "parts")
    resume = str(tmp_path / "parts")
    parts = simulate(experiment(resume=resume), tmp_path / "parts")
    assert parts["means"] == whole["means"]
    show_found(tmp_path / "parts", as_json=True)
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["distance"] == whole["distance"]
    assert (tmp_path / "parts" / "distance.png").read_bytes().startswith(b"\x89PNG")


def test_its_settings_are_its_own(tmp_path):
    other = simulate(experiment(keep=0.0, num_rounds=1), tmp_path / "other")
    data = [rows.x[:100].mean(axis=0) for rows in table_data(experiment()).train]
    np.testing.assert_allclose(list(other["means"].values()), np.mean(data, axis=0))
    with pytest.raises(ValueError, match="keep is a setting of column-means, and the method is"):
        Experiment(method="fedavg", keep=0.5)
