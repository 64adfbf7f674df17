"""Processes that train chunks beside each other: the same bits, errors and memories as one."""

import gc
import logging
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext

import grpc
import numpy as np
import pytest
import torch
from torch import nn

import engram
from engram.client.memory import RamStore
from engram.cohort.trainer import chunks, client_memory, worker_process, workers
from engram.cohort.trainer.chunks import deal, score
from engram.cohort.trainer.shared_tensors import Arena
from engram.cohort.trainer.worker_pool import training
from engram.cohort.trainer.workers import Workers
from engram.core.process_modes import on_one_core
from engram.guards.noise import simulated_noise
from engram.scoring import score_clients
from engram.settings.errors import RunStopped
from tests.samples import entry, sampled
from tests.support import initial_model, own_of, small_of_any, train_clients, trainer

pytestmark = pytest.mark.skipif(workers.sys.platform != "linux", reason="forks on Linux only")
CLIENTS = list(range(12))
PAYS = workers._PAYS


@pytest.fixture(scope="module", autouse=True)
def no_threads_of_grpc():
    """Those of earlier tests last as long as their servers and channels, which may be in cycles."""
    gc.collect()


def rounds_of(e, cores, *, block=4, combine=10, store=None):
    """The outcome of three rounds of all clients, by a number of processes, and their memories."""
    store = store or RamStore()
    found = []
    experiment = e.model_copy(update={"cores": cores})
    with training(1), closing(Workers(experiment)) as share:
        t = trainer(e, store, noise=simulated_noise(e.seed))
        t.block = min(block, t.block)
        for server_round in (1, 2, 3):
            when = {"server_round": server_round, "durable": 0, "combine": combine, "share": share}
            found += t.train(initial_model(t), [CLIENTS], own=own_of(t, CLIENTS), **when)
        processes = 1 + len(share.pids)
    return found, store.dump(), processes


def assert_bits(found, expected):
    """Checks that rounds have the same outcomes to the bit."""
    for mine, theirs in zip(found, expected, strict=True):
        assert mine._replace(slots={}) == theirs._replace(slots={})
        torch.testing.assert_close(mine.slots, theirs.slots, rtol=0, atol=0)


@pytest.fixture
def others(monkeypatch):
    """Others train all chunks but the first of a round, however long they take."""
    here, taken = os.getpid(), worker_process.Token.taken
    some = staticmethod(lambda queue: None if os.getpid() == here else taken(queue))
    monkeypatch.setattr(worker_process.Token, "taken", some)
    monkeypatch.setattr(workers, "_PATIENCE", 10**4)


@pytest.fixture
def hasty(monkeypatch):
    """This process waits for nobody, so that chunks are trained twice."""
    monkeypatch.setattr(workers, "_PATIENCE", 0)


@pytest.fixture
def given_way(monkeypatch):
    """Modules train in turn, whatever this machine's timing says."""
    monkeypatch.setattr(
        "engram.cohort.trainer.trainer.quickest", lambda ways, cohort: next(iter(ways))
    )


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(4 * 36, 10)

    def forward(self, x):
        return self.head(self.body(x.reshape(-1, 1, 8, 8)))


engram.model(Convolutions, "workers-module")
CASES = {
    "fedavg": {"method": "fedavg"},
    "scaffold": {"method": "scaffold"},
    "ditto": {"method": "ditto"},
    "local": {"method": "local"},
    "local-moml": {"method": "local-moml", "memory": "carry"},
    "cnn": {"method": "fedavg", "model": "cnn", "dataset": "digits"},
    "module": {"method": "apfl", "model": "workers-module"},
    "moments": {"method": "fedrep", "optimizer": "adam", "optimizer-state": "kept"},
    "noised": {"method": "fedavg", "privacy": "local", "clip": 1.0, "noise-multiplier": 1.0},
}


WAYS = (10, "others"), (None, "hasty")
TABLE = [(name, *way) for name in CASES for way in WAYS]
QUICK = [(name, *WAYS[i % 2]) for i, name in enumerate(CASES) if name not in ("fedavg", "local")]


@pytest.mark.parametrize(("name", "combine", "who"), sampled(TABLE, QUICK))
def test_neither_the_number_of_processes_nor_who_trains_changes_a_bit(
    name, combine, who, given_way, request
):
    request.getfixturevalue(who)
    e = small_of_any(num_clients=12, clients_per_round=12, **CASES[name])
    (one, kept, _), (found, memories, processes) = (
        rounds_of(e, cores, combine=combine) for cores in (1, 3)
    )
    assert (processes, memories) == (3, kept)
    assert_bits(found, one)


@pytest.mark.parametrize("code", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_lost_costs_no_bit(code, caplog, monkeypatch, others):
    caplog.set_level(logging.WARNING, "flwr.engram")
    e = small_of_any(method="ditto", num_clients=12, clients_per_round=12)
    whole, kept, _ = rounds_of(e, 1)
    before, here = client_memory.Lent.save, os.getpid()

    def save(self, client, memory, *, server_round, durable):
        if server_round == 2 and os.getpid() != here:
            os.kill(os.getpid(), code)
        before(self, client, memory, server_round=server_round, durable=durable)

    monkeypatch.setattr(client_memory.Lent, "save", save)
    found, memories, left = rounds_of(e, 3)
    assert (left, memories) == (1, kept)
    assert_bits(found, whole)
    (line,) = caplog.messages
    assert line == (
        f"a process that trained clients ended with exit code {-code}: "
        "from now on one process trains all of them"
    )


def test_a_process_that_hangs_costs_no_bit_and_stops_nobody(monkeypatch, given_way):
    e = small_of_any(method="ditto", num_clients=12, clients_per_round=12)
    whole, kept, _ = rounds_of(e, 1)
    load, here = client_memory.Lent.load, os.getpid()

    def hanging(self, client, *, before):
        while os.getpid() != here:
            time.sleep(60)
        return load(self, client, before=before)

    monkeypatch.setattr(client_memory.Lent, "load", hanging)
    found, memories, left = rounds_of(e, 3)
    assert (left, memories) == (3, kept)
    assert_bits(found, whole)


def failing(number):
    """A loss that raises for a client's rows, of which the first column says whose they are."""

    def loss(outputs, targets):
        if (targets == number).any():
            raise ValueError("these targets are not for me")
        return (outputs - targets).square().mean()

    return loss


def rows(clients=8):
    rng = np.random.default_rng(0)
    return {
        f"site {c}": (rng.normal(size=(12, 3)).astype(np.float32), np.full(12, c, np.float32))
        for c in range(clients)
    }


def test_an_error_names_its_client(tmp_path, monkeypatch):
    settings = {"method": "fedavg", "num_rounds": 2, "engine": "sequential", "progress": False}
    settings |= {"loss": failing(5), "task": "regression", "clients_per_round": 8}
    lines = []
    for cores in (1, 2):
        with pytest.raises(RunStopped) as refused:
            engram.simulate(rows(), cores=cores, out=tmp_path / str(cores), **settings)
        lines.append(str(refused.value).replace(f"/{cores}", ""))
    assert "client site 5 failed in round 1 at step 1" in lines[0]
    assert lines[0] == lines[1]


def test_functions_that_no_module_has_train_in_other_processes(tmp_path, others):
    def run(cores):
        seen = []
        functions = {
            "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
            "loss": lambda z, y: seen.append(os.getpid()) or (z - y).abs().mean(),
        }
        quick = {"method": "ditto", "task": "regression", "engine": "sequential", "num_rounds": 3}
        quick |= {"cores": cores, "out": tmp_path / str(cores), "progress": False}
        made = engram.simulate(rows(), **functions, **quick)
        return made.results["clients"], len(seen)

    (one, all_here), (two, some_here) = run(1), run(2)
    assert one == two
    assert some_here < all_here


def test_a_run_goes_on_with_any_number_of_processes(tmp_path):
    data, settings = rows(), {"method": "ditto", "task": "regression", "engine": "sequential"}

    def run(out, **more):
        return engram.simulate(data, out=out, progress=False, **settings, **more)

    whole = run(tmp_path / "whole", num_rounds=5, cores=1)
    run(tmp_path / "parts", num_rounds=3, cores=3)
    parts = engram.simulate(data, resume=tmp_path / "parts", num_rounds=5, cores=2, progress=False)
    assert parts.results["clients"] == whole.results["clients"]


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("method", ["fedavg", "pfedme", "ifca"])
def test_others_score_what_one_process_scores(method, monkeypatch):
    monkeypatch.setattr(score_clients, "BLOCK", 3 * 64 * 30)
    e = small_of_any(method=method, num_clients=12, clients_per_round=8, cores=3)
    with training(1), closing(Workers(e)) as share:
        t, here, blocks = trainer(e), os.getpid(), []
        t.block = 4
        model, own = initial_model(t), own_of(t, CLIENTS)
        when = {"own": own, "server_round": 1}  # and not of the memories that the next one makes
        before = score(t, model, CLIENTS, **when, share=share)  # others are not there yet
        for server_round in (1, 2):
            given = {"own": own_of(t, CLIENTS[2:]), "share": share, "durable": 1}
            t.train(model, [CLIENTS[2:]], server_round=server_round, **given)
        block = t.scorer.block

        def counted(*given):
            assert os.getpid() == here
            blocks.append(given[2])
            return block(*given)

        alone = score(t, model, CLIENTS, **when)
        monkeypatch.setattr(t.scorer, "block", counted)
        together = score(t, model, CLIENTS, **when, share=share)
        assert len(blocks) == 1 < len(t.scorer.blocks(CLIENTS, t.recalled(CLIENTS, before=2)))
    assert alone.columns.keys() == together.columns.keys() == before.columns.keys()
    for name, column in alone.columns.items():
        assert torch.equal(column, together.columns[name])
        if method == "fedavg":
            assert torch.equal(column, before.columns[name])
    assert torch.equal(alone.queries, together.queries)


@pytest.mark.parametrize("cluster", [False, True])
def test_one_process_scores_where_others_would_have_to_be_given_much(cluster, monkeypatch):
    monkeypatch.setattr(score_clients, "BLOCK", 3 * 64 * 30)
    t = trainer(small_of_any(method="pfedme", num_clients=12, clients_per_round=8))
    train_clients(t, initial_model(t), CLIENTS, server_round=1, durable=0)

    def share(trainer, asked, chunks):
        raise AssertionError(len(chunks))

    if cluster:
        share.cuts = True
    else:
        monkeypatch.setattr(chunks, "_LENT", 0)
    found = score(t, initial_model(t), CLIENTS, server_round=1, share=share)
    assert len(found.queries) == len(CLIENTS)


def test_ctrl_c_ends_all_processes():
    e = small_of_any(method="fedavg", num_clients=12, clients_per_round=12)
    t = trainer(e)
    t.block = 4
    with training(1), closing(Workers(e.model_copy(update={"cores": 3}))) as share:
        when = {"durable": 0, "share": share}
        t.train(initial_model(t), [CLIENTS], server_round=1, **when)
        pids = share.pids
        for pid in pids:
            os.kill(pid, signal.SIGINT)  # as a terminal does; they do not see it
        t.train(initial_model(t), [CLIENTS], server_round=2, **when)
        assert share.pids == pids
        assert len(pids) == 2

        def interrupted(done, seconds):
            collect(done, seconds)
            if share._team._out != [set(), set()]:
                raise KeyboardInterrupt

        collect = share._team._collect
        share._team._collect = interrupted
        with pytest.raises(KeyboardInterrupt):
            t.train(initial_model(t), [CLIENTS], server_round=3, **when)
        share._team._collect = collect
        for pid in pids:  # some were at work on the round
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        t.train(initial_model(t), [CLIENTS], server_round=3, **when)


@contextmanager
def serving():
    """Context of a server of gRPC in this process."""
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("settings", "where", "why"),
    [
        ({"cpu_threads": 2}, None, "cpu-threads is 2"),
        ({}, on_one_core, "other cores train other runs"),
        ({}, lambda: training(1), "other cores train other runs"),
        ({}, serving, "it has threads of gRPC, beside which none may be forked"),
    ],
)
def test_one_process_trains_where_others_cannot(settings, where, why, caplog):
    caplog.set_level(logging.WARNING, "flwr.engram")
    e = small_of_any(method="fedavg", num_clients=12, clients_per_round=12, **settings)
    caplog.clear()
    with where() if where else nullcontext():
        _, _, processes = rounds_of(e, 2)
    assert processes == 1
    assert caplog.messages[-1] == f"cores=2: one process trains all clients, since {why}"


@pytest.mark.parametrize("seconds", [0.001, 10.0])
def test_others_help_where_it_pays(seconds, monkeypatch):
    ticks = iter(np.arange(0, 10**4, seconds))
    monkeypatch.setattr(workers.time, "process_time", lambda: next(ticks))
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(workers, "_PAYS", PAYS)
    e = small_of_any(method="fedavg", num_clients=12, clients_per_round=12)
    assert rounds_of(e, 0)[2] == (2 if seconds > 1 else 1)


def test_chunks_are_all_clients_in_their_order():
    for count in [0, 1, 2, 7, 10, 64, 100]:
        for block in [1, 3, 18, 64, 134, 10**6]:
            with entry(count, block):
                clients, third = list(range(100, 100 + count)), count // 3
                groups = [clients[:third], [], clients[third:]]
                own = {"mine": torch.arange(count)}
                chunks = deal(groups, own, block)
                assert [c for chunk in chunks for c in chunk.clients] == clients
                numbers = [n for chunk in chunks for n in chunk.numbers]
                assert numbers == [0] * third + [2] * (count - third)
                sizes = [len(chunk.clients) for chunk in chunks]
                assert max(sizes, default=0) <= block
                assert max(sizes, default=0) - min(sizes, default=0) <= 1
                assert all(sizes)
                assert (len(chunks) > 1) == (2 * count > block and count > 1)
                mine = [n for chunk in chunks for n in chunk.own["mine"].tolist()]
                assert mine == list(range(count))


def test_an_arena_gives_what_was_put_in():
    arena = Arena()
    things = {
        "views": torch.arange(12.0).reshape(3, 4).T,
        "none": torch.zeros(0, 3),
        "whole": (torch.tensor(7), torch.arange(3, dtype=torch.uint8)),
        "expanded": torch.ones(1, 3).expand(4, 3),
        "words": ["a", {"b": None}],
    }
    for _ in range(2):
        places = [arena.put(things), arena.put(torch.randn(10**5))]
        found = arena.get(places[0])
        torch.testing.assert_close(found["views"], things["views"], rtol=0, atol=0)
        assert found["words"] == things["words"]
        assert found["none"].shape == (0, 3)
        assert found["whole"][0].shape == ()
        assert found["expanded"].equal(things["expanded"])
        assert all(x.data_ptr() % 64 == 0 for x in (found["views"], found["whole"][1]))
        arena.clear()
    arena.close()
