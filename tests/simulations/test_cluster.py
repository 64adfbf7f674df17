"""Rounds on a Ray cluster: the numbers of one process, whatever dies; what cannot be is refused."""

import os
import signal
from contextlib import closing
from itertools import cycle, product

import psutil
import pytest
import ray
import torch

from engram.client.memory import RamStore
from engram.client.ray_worker import RemoteWorker, digest_of, in_pieces
from engram.cohort.trainer.worker_pool import training
from engram.guards.noise import simulated_noise
from engram.runs.run import Run
from engram.settings.errors import EngramError, Refused
from engram.settings.fingerprint import fingerprint
from engram.settings.plugins import VARIABLE
from engram.simulations import ray_rounds
from engram.simulations.engine import simulate
from engram.simulations.ray_actors import Crew, Outcome
from engram.simulations.ray_rounds import Cluster
from tests.processes.support import wait_for
from tests.samples import entry, sampled
from tests.support import assert_same, initial_model, own_of, small, small_of_any, trainer

CLIENTS = list(range(12))
CASES = {
    **{name: {"method": name} for name in ("fedavg", "scaffold", "ditto", "local", "fedpac")},
    "local-moml": {"method": "local-moml", "memory": "carry"},
    "moments": {"method": "fedrep", "optimizer": "adam", "optimizer-state": "kept"},
    "noised": {"method": "fedavg", "privacy": "local", "clip": 1.0, "noise-multiplier": 1.0},
}
ALIKE = {"num_clients": 12, "clients_per_round": 12}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """A worker, which has a process of its own, sets folder and plug-ins."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.chdir(os.getcwd())
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class InTurn:
    """A crew without Ray: workers of this process, which a script has die."""

    dying: tuple = ()  # numbers of the chunks whose workers die, in the order of their deaths
    failing: tuple = ()  # numbers of those that raise an error
    size = 3

    def __init__(self, address, *, cores, gpu):
        assert (cores, gpu) == (1, False)
        self.idle, self.waiting, self.deaths = [], [], list(self.dying)

    def start(self, *begin, run):
        import pickle

        for _ in range(self.size):
            worker = RemoteWorker()
            assert worker.begin(*begin, pickle.dumps(run)) == ""
            self.idle.append(worker)

    @property
    def has_room(self):
        return bool(self.idle)

    @property
    def at_work(self):
        return bool(self.waiting)

    def put(self, data):
        return in_pieces(data, 3)

    def give(self, number, same, own):
        self.waiting.append((self.idle.pop(), number, same, own))

    def outcomes(self):
        worker, number, same, own = self.waiting.pop()  # the last one first
        if number in self.deaths:
            self.deaths.remove(number)
            yield Outcome(number, lost=True)
            return
        self.idle.append(worker)
        mine = in_pieces(own, 2)
        done = b"".join(worker.train(4, len(mine), *mine, *same))
        yield Outcome(number, None if number in self.failing else done)

    def forget(self):
        self.idle += [worker for worker, *_ in self.waiting]
        self.waiting = []

    def close(self):
        self.idle = []


def crew(monkeypatch, **script):
    monkeypatch.setattr(ray_rounds, "Crew", type("Scripted", (InTurn,), script))


def rounds_of(e, *, remote, combine=10):
    """The outcome of three rounds of all clients, and their memories."""
    store, found = RamStore(), []
    with training(1):
        t = trainer(e, store, noise=simulated_noise(e.seed))
        t.way = t.ways[0]  # whatever this machine's timing says
        how = {"share": Cluster("address", e, "vectorized", t.given)} if remote else {}
        how |= {"own": own_of(t, CLIENTS), "durable": 0, "combine": combine}
        for server_round in (1, 2, 3):
            groups = [CLIENTS[:5], CLIENTS[5:]]
            found += t.train(initial_model(t), groups, server_round=server_round, **how)
    return found, {client: store.load(client, before=4) for client in CLIENTS}


def assert_alike(found, expected):
    for mine, same in zip(*(outcomes for outcomes, _ in (found, expected)), strict=True):
        assert mine.clients == same.clients
        assert mine.examples == same.examples
        assert mine.losses == pytest.approx(same.losses, abs=1e-5)
        torch.testing.assert_close(mine.slots, same.slots, rtol=0, atol=1e-5)
    for client, memory in expected[1].items():
        if memory is None:
            assert found[1][client] is None
        else:
            assert_same(found[1][client], memory, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "combine"),
    sampled(product(CASES, (10, None)), list(zip(CASES, cycle((10, None)), strict=False))),
)
def test_workers_elsewhere_train_what_one_process_trains(name, combine, monkeypatch):
    e = small_of_any(**ALIKE, **CASES[name])
    crew(monkeypatch)
    expected = rounds_of(e, remote=False, combine=combine)
    assert_alike(rounds_of(e, remote=True, combine=combine), expected)


def test_the_death_of_workers_loses_nothing(monkeypatch):
    # A number that is listed twice takes two workers with it, and is trained by the last.
    e = small_of_any(**ALIKE, method="ditto")
    expected = rounds_of(e, remote=False)
    scripts = [{"dying": dying} for dying in [(1,), (0, 2, 0), (0, 0, 1), (2, 2, 1, 0), (0, 1, 2)]]
    for script in [*scripts, {"dying": (0, 1, 2), "size": 1}]:  # at last this process trains
        with entry(script):
            crew(monkeypatch, **script)
            assert_alike(rounds_of(e, remote=True), expected)


def test_a_chunk_that_takes_every_worker_with_it_is_named(monkeypatch):
    e = small_of_any(**ALIKE, method="ditto")
    crew(monkeypatch, dying=(0, 0, 0), size=4)
    expected = (
        r"^3 workers died as they trained clients \[0, 1, 2\], most likely for lack of memory"
    )
    with pytest.raises(EngramError, match=expected):
        rounds_of(e, remote=True)


def test_an_error_is_raised_where_the_run_is(monkeypatch):
    e = small_of_any(**ALIKE, method="ditto")
    crew(monkeypatch, failing=(1,))
    assert_alike(rounds_of(e, remote=True), rounds_of(e, remote=False))
    monkeypatch.setattr("engram.cohort.trainer.trainer.Trainer.chunk", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rounds_of(e, remote=True)


def test_a_worker_of_another_source_or_other_rows_takes_no_part(monkeypatch):
    import pickle

    e = small(method="fedavg")
    rows, run = digest_of(trainer(e).given), pickle.dumps((e, "vectorized"))
    begin = RemoteWorker().begin
    same, home = fingerprint(), os.getcwd()
    assert begin(same, "", home, rows, run) == ""
    assert begin(same, "", "/nowhere", rows, run) == ""
    assert "but this process runs 0123" in begin("0123", "", home, rows, b"of another source")
    assert "reads other rows of digits than this process" in begin(same, "", home, rows + 1, run)
    missing = pickle.dumps((e.model_copy(update={"dataset": "npz:/nowhere.npz"}), "vectorized"))
    assert "/nowhere.npz" in begin(same, "", home, rows, missing)
    assert "UnpicklingError" in begin(same, "", home, rows, b"garbage")
    assert "plug-in absent cannot be imported" in begin(same, "absent", home, rows, run)


def test_what_no_cluster_trains_is_refused(tmp_path):
    for settings in [
        {"method": "molar", "dataset": "sparse-linear", "num_clients": 7},
        {"method": "fedavg", "aggregation": "secure", "clip": 1},
        {"method": "fedavg", "attack": "sign-flip"},
    ]:
        e, told = small(**settings), "ray must be left out for methods without a network"
        with entry(settings), pytest.raises(Refused, match=told):
            simulate(e, tmp_path / "run", cluster=lambda *what: Cluster("127.0.0.1:1", *what))
        assert not (tmp_path / "run").exists()


def test_a_cluster_that_is_not_there_is_refused(engram, tmp_path):
    for command in (["run", "fedavg"], ["compare", "fedavg", "ditto", "--seeds=2"]):
        code, _, printed = engram(*command, "--ray=127.0.0.1:1", f"--out={tmp_path / command[0]}")
        assert code == 2
        expected = "ray must be the address of a cluster that answers, got '127.0.0.1:1'"
        assert expected in " ".join(printed.split())
        assert not (tmp_path / command[0]).exists()


# --- Three machines --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three():
    """A cluster of three raylets with one core each."""
    from ray.cluster_utils import Cluster as Raylets

    how = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    raylets = Raylets(initialize_head=True, head_node_args=how)
    for _ in range(2):
        raylets.add_node(**how)
    yield raylets
    ray.shutdown()
    raylets.shutdown()


LONGER = small(method="ditto", num_clients=20, clients_per_round=12, num_rounds=5, eval_every=1)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here") / "run"
    simulate(LONGER, folder)
    return folder


def assert_same_runs(one, other):
    one, other = Run.open(one), Run.open(other)
    assert_same(other.load_checkpoint().model, one.load_checkpoint().model, atol=1e-5)
    mine, theirs = (record.load_checkpoint().memories for record in (one, other))
    stores = []
    for memories in (mine, theirs):
        stores.append(RamStore())
        stores[-1].restore(memories)
    for client in range(20):
        kept = [store.load(client, before=9) for store in stores]
        if kept[0] is None:
            assert kept[1] is None
        else:
            assert_same(kept[1], kept[0], atol=1e-5)
    rows = [record.rows() for record in (one, other)]
    for key in ("round", "cohort", "absent"):
        assert [row.get(key) for row in rows[0]] == [row.get(key) for row in rows[1]]


@pytest.mark.processes
def test_a_run_on_three_machines(three, here, engram, tmp_path):
    settings = [f"--set={key}={value}" for key, value in LONGER.to_config().items() if value != ""]
    there = f"--ray={three.address}"
    code, _, printed = engram(
        "run", *settings, "--set=num-rounds=3", f"--out={tmp_path}/run", there
    )
    assert code == 0, printed
    code, _, printed = engram("run", f"--resume={tmp_path}/run", "--set=num-rounds=5", there)
    assert code == 0, printed
    assert_same_runs(here, tmp_path / "run")


@pytest.mark.processes
def test_other_rows_are_refused(three):
    e = small(method="fedavg")
    with pytest.raises(Refused, match=r"must have the same on each machine: .* reads other rows"):
        Cluster(three.address, e, "vectorized", trainer(small(num_clients=7)).given)


@pytest.mark.processes
def test_a_machine_that_is_killed_in_mid_round_loses_nothing(
    three, here, tmp_path, monkeypatch, warnings_of_engram
):
    give, given, killed = Crew.give, [], []
    others = [node for node in three.list_all_nodes() if not node.head]
    processes = [info.process for node in others for info in node.all_processes["raylet"]]
    raylets = {process.pid: process for process in processes}

    def watched(self, number, same, own):
        """Kills the machine that has the first chunk outside the head after the first round."""
        given.append(number)
        pid = ray.get(self._idle[-1].__ray_call__.remote(lambda _: os.getpid()))
        (its,) = [raylets.get(process.pid) for process in psutil.Process(pid).parents()[:1]]
        if killed or its is None or given.count(0) < 2:
            give(self, number, same, own)
            return
        workers = psutil.Process(its.pid).children(recursive=True)
        for process in workers:
            process.suspend()  # so that it cannot be done with what it gets
        give(self, number, same, own)
        for dying in (its.pid, *(process.pid for process in workers)):
            os.kill(dying, signal.SIGKILL)
        its.wait()
        killed.append(its)

    monkeypatch.setattr(Crew, "give", watched)
    with closing(Crew(three.address, cores=1, gpu=False)) as crew:
        assert crew.size == 3
        # The workers of runs before are gone then.
        wait_for(lambda: ray.available_resources().get("CPU", 0) == 3, "three free cores")
    simulate(LONGER, tmp_path / "run", cluster=lambda *what: Cluster(three.address, *what))
    assert killed
    assert "a worker died, and others train its clients again" in warnings_of_engram.messages
    assert_same_runs(here, tmp_path / "run")
