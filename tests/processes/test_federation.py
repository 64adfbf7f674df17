"""One federation of real processes: the same app over gRPC gives the model of one process."""

import contextlib
import threading

import psutil
import pytest

from engram.client.disk_memory import DiskStore
from engram.data.load_federation import federated_data
from engram.runs.participation import participation
from engram.runs.run import Run
from engram.server.status import members
from engram.settings.experiment import Experiment, read_by
from engram.settings.method_for_data import server_side
from engram.simulations.deployed import run_deployed
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
from engram.studio.live import Federation
from engram.studio.live import federation as page
from engram.studio.run_index import RunIndex
from tests.epsilons import epsilon, poisson_epsilon
from tests.golden import federated
from tests.link.wire.processes import PATIENCE
from tests.processes.support import set_dead_proxies, wait_for
from tests.studio.test_board import said
from tests.support import assert_same

pytestmark = pytest.mark.processes

CLIENTS = 3


def settings(**special):
    own = dict.fromkeys(("num-clients", "clients-per-round", "min-clients"), CLIENTS)
    own |= {"timeout": 600.0, "rows-per-class": 20, "test-rows-per-class": 8, "hidden": "16"}
    own |= {"num-rounds": 4, "eval-every": 2, "checkpoint-every": 2}
    method = special.get("method", "local-moml")
    return Experiment.from_config(read_by(method, own) | special)


def run(federation, experiment, folder):
    """Runs it, and returns its record; whatever went wrong on the way fails the test."""
    trouble = []
    run_deployed(experiment, folder, federation.server, on_trouble=trouble.append)
    assert not trouble
    return Run.open(folder)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Three resident nodes among dead proxies, for tests that leave them as they were."""
    shared = LoopbackFederation(tmp_path_factory.mktemp("shared") / "fed", clients=CLIENTS)
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as monkeypatch:
            set_dead_proxies(monkeypatch)
            stack.enter_context(shared)
        yield shared


def assert_as_here(federation, experiment, folder, *, nodes=CLIENTS):
    """Runs an experiment on nodes and in this process: models, scores and memories are the same."""
    found = simulate(experiment, folder / "here")
    record = run(federation, experiment, folder / "there")
    online = members(federation.server)
    expected = Run.open(folder / "here")
    model = expected.load_checkpoint().model
    assert_same(record.load_checkpoint().model, model, atol=1e-6)
    assert record.results["accuracy"] == pytest.approx(found["accuracy"], abs=0.0051)
    assert participation(record.rows()) == participation(expected.rows())
    assert all(row["left-out"] == 0 for row in record.rows()[1:])
    row = record.rows()[-1]
    asked = {client % nodes for client in row["cohort"]}
    assert row["bytes-sent"] > len(asked) * 4 * sum(leaf.numel() for leaf in model.values())
    assert row["seconds-training"] > 0
    assert [member.status for member in online] == ["online"] * nodes
    if server_side(experiment, federated_data(experiment).kind)[1].kept:
        trained = {client: row["round"] for row in record.rows()[1:] for client in row["cohort"]}
        for client, last in trained.items():
            own = federation.server.parent / f"client-{client % nodes}" / "state" / "memory"
            store = DiskStore(own / record.config["training"])
            assert list(store.versions(client))[-1] == last
    return online


def golden(name):
    """Golden settings of 20 clients, of which each node has every third one."""
    return federated.experiment(name, timeout=600.0, min_clients=4)


def test_a_run_over_grpc_ends_at_the_golden_model_among_dead_proxies(
    tmp_path, federation, monkeypatch
):
    set_dead_proxies(monkeypatch)
    special = "local-moml, carried, exact"
    online = assert_as_here(federation, golden(special), tmp_path)
    assert federated.elsewhere(special, tmp_path / "there") == []
    assert {member.name for member in online} == {f"client-{i}" for i in range(CLIENTS)}


def test_turns_of_a_bandit_are_those_of_one_process(tmp_path, federation):
    bandit = {"method": "meta-ban", "dataset": "linear-groups", "num-rounds": 10}
    experiment = settings(**bandit, **{"meta-steps": 2})
    simulate(experiment, tmp_path / "here")
    record = run(federation, experiment, tmp_path / "there")
    rows, expected = record.rows(), Run.open(tmp_path / "here").rows()
    for key in ("served", "arm", "groups", "told", "regret"):
        assert [row[key] for row in rows] == [row[key] for row in expected], key
    assert all(row["left-out"] == 0 for row in rows)
    assert all(row["bytes-sent"] > 0 < row["bytes-received"] for row in rows)
    state = federation.server.parent / "client-2" / "state"
    own = state / "memory" / record.config["training"]
    theirs = [row["round"] for row in rows if row["served"] == 2]
    assert sorted(DiskStore(own).versions(2))[-1] == theirs[-1]
    assert_same(
        record.load_checkpoint().model,
        Run.open(tmp_path / "here").load_checkpoint().model,
        atol=1e-9,
    )


def coordinators(federation):
    """Processes of runs on a federation that this process has started."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it may have ended
            words = child.cmdline()
            if "engram.simulations.coordinator" in words and str(federation.server) in words:
                found.append(child)
    return found


def test_a_run_goes_on_whichever_process_is_killed(tmp_path, federation):
    """The coordinator at once and in mid-run, and the server; a second coordinator waits."""
    experiment = settings(**{"num-rounds": 12, "checkpoint-every": 1})
    folder, troubles, words, second, told = tmp_path / "there", [], [], [], []
    simulate(experiment, tmp_path / "here")

    def go(word=words.append, **options):
        run_deployed(experiment, folder, federation.server, on_word=word, **options)

    def on_round(row):
        if row["round"] in told:  # each attempt begins by telling the last one again
            return
        told.append(row["round"])
        if row["round"] == 2:
            (coordinator,) = coordinators(federation)
            coordinator.kill()
            threading.Thread(target=go, args=(second.append,), daemon=True).start()
        if row["round"] == 6:
            federation.kill("superlink")
            federation.start("superlink")

    def begin(line):
        if "starting" in line and not troubles:
            wait_for(lambda: coordinators(federation), "a coordinator")[0].kill()

    going = threading.Thread(
        target=go, args=(begin,), kwargs={"on_trouble": troubles.append, "on_round": on_round}
    )
    going.start()
    going.join(PATIENCE)
    assert [line.partition(";")[0] for line in troubles[:2]] == ["the coordinator died"] * 2
    # One may have met the coordinator of the second process, which then goes on with the run.
    assert all("is being run by another process" in line for line in troubles[2:])
    wait_for(lambda: not coordinators(federation), "the end of all coordinators")
    record = Run.open(folder)
    assert [row["round"] for row in record.rows()] == [*range(13)]
    assert all(row["left-out"] == 0 for row in record.rows()[1:])
    here = Run.open(tmp_path / "here").load_checkpoint().model
    assert_same(record.load_checkpoint().model, here, atol=1e-6)
    assert [path.name for path in federation.server.glob("run-*")] == []


def test_buffered_rounds_wait_for_no_node_and_a_late_answer_counts(tmp_path, federation):
    buffered = {"method": "ditto"}
    whole = settings(**buffered, **{"buffer-size": CLIENTS})
    simulate(settings(method="ditto"), tmp_path / "here")
    # A buffer for all of them makes synchronous rounds.
    there = run(federation, whole, tmp_path / "whole")
    here = Run.open(tmp_path / "here")
    assert_same(there.load_checkpoint().model, here.load_checkpoint().model, atol=1e-6)
    assert [row["staleness"] for row in there.rows() if row["round"]] == [0, 0, 0, 0]

    node = psutil.Process(federation.processes["client-1"].pid)
    own = {"buffer-size": 2, "min-clients": 2, "num-rounds": 40, "eval-every": 40}

    def on_round(row):
        if row["round"] == 3:
            node.suspend()
        if row["round"] == 15:
            node.resume()

    run_deployed(
        settings(**buffered, **own),
        tmp_path / "some",
        federation.server,
        on_round=on_round,
    )
    rows = Run.open(tmp_path / "some").rows()[1:]
    assert [row["round"] for row in rows] == list(range(1, 41))
    assert all(row["ms"] < 10_000 for row in rows)  # nobody waited for the one that was stopped
    assert {tuple(row["cohort"]) for row in rows[8:15]} == {(0, 2)}
    back = next(row for row in rows[15:] if 1 in row["cohort"])
    assert back["staleness"] >= 2  # the mean of one of six rounds before, at least, and of two
    assert back["left-out"] == 0


def test_nodes_train_in_secret_cohorts_towards_a_target(tmp_path, federation):
    private = {"privacy": "central", "clip": 0.3, "epsilon": 4.0, "clip-quantile": 0.5}
    sampled = {"sampling": "poisson", "clients-per-round": 1, "num-rounds": 6, "min-clients": 0}
    experiment, folder = settings(**private, **sampled), tmp_path / "run"
    run_deployed(experiment, folder, federation.server)
    record = Run.open(folder)
    rows, found = record.rows()[1:], record.results
    assert len(rows) == 6
    asked = (folder / "clients-asked.txt").read_text().splitlines()
    assert asked == [" ".join(map(str, row["cohort"])) for row in rows]
    assert all(row["clients"] == len(row["cohort"]) for row in rows)
    assert all(row["clip"] > 0 for row in rows)
    rate, noise = 1 / experiment.num_clients, found["noise-multiplier"]
    assert found["epsilon"] == poisson_epsilon(noise, rate, 6, 1e-5) <= 4


def test_nodes_hide_single_rows_and_single_turns_and_say_what_that_costs(tmp_path, federation):
    hidden = {"privacy": "example", "clip": 6.0, "noise-multiplier": 2.0}
    steps = {"method": "fedavg", "batch-size": 1000, "local-steps": 3, "num-rounds": 2}
    bandit = {"method": "molar-bandit", "dataset": "sparse-linear", "num-rounds": 8}
    rows, turns = (
        run(federation, settings(**hidden, **special), tmp_path / special["method"]).results
        for special in (steps, bandit)
    )
    # Every step sums all rows, of which one moves it by clip; a turn is in one release alone.
    assert rows["epsilon"] == pytest.approx(epsilon(2.0, 2 * 3, 1e-5))
    assert turns["epsilon"] == pytest.approx(epsilon(2.0, 2, 1e-5))
    assert rows["clients"]["accuracy"] == [None] * CLIENTS
    assert turns["clients"]["turns"] == [0] * CLIENTS
    assert turns["shared"]["coef"] != [None]


def test_the_board_says_who_is_there_and_how_far_a_run_is(tmp_path, federation):
    runs = tmp_path / "runs"
    runs.mkdir()
    experiment = settings(**{"num-rounds": 40, "eval-every": 40})
    going = threading.Thread(target=run, args=(federation, experiment, runs / "live"), daemon=True)
    going.start()
    live, index = Federation(federation.server), RunIndex(runs)
    words = ["of 40 rounds are done", "nodes have answered", "at work"]
    words += [f"client {client}" for client in range(CLIENTS)]

    def all_told():
        text = said(page(index, live))
        return text.count('"online"') == CLIENTS and all(word in text for word in words)

    wait_for(all_told, "a page of nodes on line, and of a round in progress")
    going.join(PATIENCE)
    assert Run.open(runs / "live").results is not None
    assert "No run of" in said(page(index, live))
