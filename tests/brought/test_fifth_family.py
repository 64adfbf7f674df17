"""A family of methods from outside, which nothing of the house knows: this file is its plug-in."""

import json
from pathlib import Path

import numpy as np
import pytest

from engram.client.hosts import hosts
from engram.client.hosts.rows import read_tables
from engram.client.requests import answered, round_of, split
from engram.compare.reports.base import reports
from engram.compare.reports.sites import draw_curve
from engram.data.schema.columns import Kind
from engram.runs.run import Run
from engram.scoring.metrics import Metric
from engram.settings.base import NO_NETWORK, Method
from engram.settings.families import method
from engram.settings.fields import Float
from engram.strategies.running.base import strategies
from engram.strategies.running.site_strategy import SiteStrategy, read_split
from engram.wire.messages import TRAIN
from engram.wire.roster import describe_node
from engram.wire.wire import CLIENTS, floats_record, read_floats

DISTANCE = Metric("distance", lambda own, all_: np.linalg.norm(own - all_), low=0, better="lower")


class Means(Method):
    name = plug_in = "column-means"
    meaning = "the mean of clients' column means; they are scored by their distance from it"
    source = "this file"
    unread = NO_NETWORK
    keep: Float = 0.5

    def metrics(self, shared):
        return [DISTANCE]


class Sites:
    def __init__(self, opening):
        self.data = read_tables(opening)

    def describe(self, hosted):
        rows = {client: len(self.data.train[client].y) for client in hosted}
        return describe_node(rows, Kind.of_table(self.data.columns))

    def train(self, requests):
        return [answered(r, lambda clients, r=r: self._means(r, clients)) for r in requests]

    evaluate = train

    def _means(self, request, clients):
        means = np.array([self.data.train[client].x.mean(axis=0) for client in clients])
        details = split(round_of(request.question.content), clients, {})
        return {"means": floats_record(means=means), CLIENTS: details}


class Averaging(SiteStrategy):
    keep, state = 0.0, {}
    evaluated = property(lambda self: bool(self.found))

    @classmethod
    def build(cls, experiment, roster, noise):
        made = cls(experiment, roster)
        made.keep = experiment.of(Means).keep
        return made

    def init(self):
        return floats_record(means=np.zeros(len(self.sites.columns)))

    def configure_train(self, server_round, arrays, config, grid):
        self.shared = read_floats(arrays, "means", (len(self.sites.columns),))
        return self.questions(TRAIN, server_round, config, grid, lambda clients: {})

    configure_evaluate = configure_train

    def aggregate_train(self, server_round, replies):
        self.aggregate_evaluate(server_round, replies)
        self.check_enough(len(self.found))
        mean = np.mean([*self.found.values()], axis=0)
        return floats_record(means=mean + self.keep * (self.shared - mean)), {}

    def aggregate_evaluate(self, server_round, replies):
        self.found = {}
        self.left_out = self.gather(server_round, replies, self._read)

    def _read(self, content, clients):
        ids, _, _ = read_split(content, clients)
        means = read_floats(content["means"], "means", (len(ids), len(self.sites.columns)))
        self.found |= dict(zip(ids, means, strict=True))

    def scores(self):
        return {"distance": np.mean([DISTANCE.score(x, self.shared) for x in self.found.values()])}

    def results(self, arrays, row):
        return {**row, "means": self.shared.tolist()}

    @staticmethod
    def in_words(row):
        return f"distance {row['distance']:.4g}" if "distance" in row else ""


def show(folder, as_json):
    record = Run.open(folder)
    found = {row["round"]: row["distance"] for row in record.rows() if "distance" in row}
    drawn = draw_curve([*found], [*found.values()], "o-", {"xlabel": "round"})
    drawn.savefig(folder / "distance.png")
    print(record.results["means"])


if __name__ == "test_fifth_family":  # as a plug-in, and not as pytest imports it
    method(Means)
    hosts(Means.plug_in)(Sites)
    strategies(Means.plug_in)(Averaging)
    reports(Means.plug_in)(show)

pytestmark = pytest.mark.usefixtures("plug_ins", "drawn")
PLUG = ["--plugin", Path(__file__).with_suffix("")]
SETS = ["-smethod=column-means", "-sdataset=sparse-linear", "-snum-clients=2", "-snum-rounds=4"]


def means(folder):
    return Run.open(Path(folder)).results["means"]


def test_it_runs_resumes_and_is_shown(engram):
    engram(*PLUG, "run", *SETS, "--out=whole")
    rows = Run.open(Path("whole")).rows()
    assert rows[4]["distance"] < rows[0]["distance"]
    engram(*PLUG, "run", *SETS, "-snum-rounds=2", "--out=parts")
    engram(*PLUG, "run", "--resume=parts", "-snum-rounds=4")
    after = f"next: engram {' '.join(map(str, PLUG))} report parts\n"
    assert engram(*PLUG, "show", "parts")[1] == f"{means('whole')}\n{after}"
    assert Path("parts/distance.png").read_bytes().startswith(b"\x89PNG")
    # From zero, each round halves what is left to the mean, which keep=0 reaches at once.
    engram(*PLUG, "run", *SETS, "-skeep=0", "--out=at-once")
    assert means("whole") == pytest.approx(np.multiply(means("at-once"), 1 - 0.5**4))


@pytest.mark.processes
@pytest.mark.parametrize("engine", ["ray", "grpc"])
def test_it_runs_on_other_engines(engram, engine, tmp_path):
    engram(*PLUG, "run", *SETS, "--out=here")
    if engine == "grpc":
        engram(*PLUG, "federation", *SETS, "--clients=2", "--out=there")
    else:
        from tests.simulations.superlink import SuperLink, toml

        engram(*PLUG, "app", "app")
        settings = Run.open(Path("here")).config["settings"]
        with SuperLink(tmp_path) as superlink:
            superlink.run(
                "app", toml({"engram": json.dumps(settings | {"out": f"{tmp_path}/there/run"})})
            )
    assert means("there/run") == pytest.approx(means("here"))
