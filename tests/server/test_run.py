"""Runs are recorded; one killed at any instant gives the numbers of one that was not."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from engram.client.disk_memory import DiskStore
from engram.client.hosts import Opening, host_of
from engram.client.hosts.local import LocalHost
from engram.client.memory import RamStore
from engram.cohort.trainer.chunks import score
from engram.compare.comparison_folder import find_runs
from engram.compare.report_rows import report_rows, shown_rounds
from engram.runs import checkpoints
from engram.runs.participation import participation
from engram.runs.run import Run
from engram.server import run as module
from engram.server.run import run as run_on
from engram.settings.errors import Refused, RunStopped
from engram.simulations.grid import InProcessGrid
from engram.strategies.running.rounds import draw_cohort
from engram.wire.checksums import Journal, summed
from engram.wire.messages import TRAIN
from engram.wire.wire import CLIENTS
from tests.samples import sampled
from tests.server.late import Late
from tests.support import assert_same, grid, initial_model, small, train_clients, trainer, write_npz
from tests.tables.federation.sites import odd


def run(folder, store=None, nodes=1, **settings):
    e = small(**settings)
    store = store or RamStore()
    ram = store if isinstance(store, RamStore) else None
    g = grid(trainer(e, store), nodes)
    return run_on(g, e, folder, engine="vectorized" if ram else "flower", memories=ram)


def numbers(folder):
    """Everything that a run found, but for times."""
    rows = [{k: v for k, v in row.items() if k != "ms"} for row in Run.open(folder).rows()]
    results = {k: v for k, v in Run.open(folder).results.items() if k != "ms-per-round"}
    return rows, results


def test_a_run_is_recorded(tmp_path):
    found = run(tmp_path / "run")
    record = Run.open(tmp_path / "run")
    assert record.results == found
    rows = record.rows()
    assert [row["round"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["round"] for row in rows if "accuracy" in row] == [0, 2, 4]
    assert all(row["clients"] == 4 and 0 < row["ms"] < 60_000 for row in rows[1:])
    model = initial_model(trainer(small()))
    by_hand = train_clients(trainer(small()), model, rows[1]["cohort"], server_round=1, durable=0)
    assert rows[1]["train-loss"] == pytest.approx(sum(by_hand.losses) / 4, abs=1e-6)
    assert found["scored"] == 20
    assert found["clients"]["ids"] == list(range(20))
    mean = sum(found["clients"]["accuracy"]) / 20
    assert found["accuracy"] == pytest.approx(mean)
    assert rows[-1]["accuracy"] == found["accuracy"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"] == small().to_config()
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "round-2",
        "round-4",
    ]


@pytest.mark.parametrize("said", [None, 3e38])
def test_a_training_loss_that_one_client_owns_is_no_mean(tmp_path, said):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    data = write_npz(tmp_path / "a.npz", x=x, y=x.sum(axis=1))
    given = {"dataset": data, "task": "regression", "partition": "iid", "model": "linear"}
    e = small(**given, method="fedavg", num_clients=5, clients_per_round=5, num_rounds=1)
    seen = []

    def lie(client, reply):
        details = reply.content[CLIENTS]
        if client == 0 and said is not None:
            details["losses"] = [said]
        seen.extend(details["losses"])
        return reply

    store = RamStore()
    hosts = [range(node, 5, 5) for node in range(5)]
    g = odd(lie)(host_of(Opening(e, store)), hosts)
    run_on(g, e, tmp_path / "run", engine="vectorized", memories=store)
    (row,) = [row for row in Run.open(tmp_path / "run").rows() if row["round"] == 1]
    assert len(seen) == 5
    assert row["train-loss-median"] == pytest.approx(np.median(seen))
    assert row.get("train-loss") == (None if said else pytest.approx(np.mean(seen)))


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


class Counter:
    """Raises at its n-th call, as if the process had been killed there."""

    def __init__(self, fatal):
        self.calls, self.fatal = 0, fatal

    def wrap(self, function):
        def wrapped(*args, **kwargs):
            self.calls += 1
            if self.calls == self.fatal:
                raise Killed
            return function(*args, **kwargs)

        return wrapped


def instants(monkeypatch, fatal):
    """Counts all that touches the disk; the process dies just before the n-th."""
    counter = Counter(fatal)
    paths = [(Path, name) for name in ("replace", "rename", "mkdir")]
    others = [(os, "fsync"), (shutil, "rmtree"), (checkpoints, "_put"), (Journal, "append")]
    for owner, name in paths + others:
        monkeypatch.setattr(owner, name, counter.wrap(getattr(owner, name)))
    return counter


@pytest.mark.parametrize("kind", sampled(["ram", "disk"], ["disk"]))
def test_killed_at_any_instant_and_resumed_gives_the_same_numbers(tmp_path, monkeypatch, kind):
    settings = {"memory": "carry", "num_clients": 6, "clients_per_round": 3, "num_rounds": 3}

    def store(folder):
        return RamStore() if kind == "ram" else DiskStore(folder / "memory")

    with monkeypatch.context() as patch:
        counter = instants(patch, None)
        run(tmp_path / "whole", store(tmp_path / "whole"), **settings)
    expected = numbers(tmp_path / "whole")
    assert counter.calls > 40
    killed = 0
    for fatal in range(1, counter.calls + 1, 3):
        folder = tmp_path / f"killed-{fatal}"
        with monkeypatch.context() as patch:
            instants(patch, fatal)
            with pytest.raises(Killed):
                run(folder, store(folder), **settings)
        if not (folder / "config.json").is_file():
            continue  # nothing was written that could be resumed
        killed += 1
        run(folder, store(folder), resume=str(folder), **settings)
        assert numbers(folder) == expected, f"killed before instant {fatal} of {counter.calls}"
    assert killed > 10


@pytest.mark.parametrize("exp_concave", [False, True])
def test_the_universal_step_is_resumed_with_its_state(tmp_path, exp_concave):
    settings = {"server_step": "universal", "method": "fedavg"}
    if exp_concave:  # few parameters
        y = np.arange(400) % 2
        x = np.random.default_rng(0).normal(size=(400, 3)) + y[:, None]
        settings |= {"dataset": write_npz(tmp_path / "few.npz", x=x, y=y), "model": "linear"}
        settings |= {"partition": "blocks", "order": "stream"}
    whole = run(tmp_path / "whole", num_rounds=6, **settings)
    run(tmp_path / "parts", num_rounds=2, **settings)
    run(tmp_path / "parts", num_rounds=6, resume=str(tmp_path / "parts"), **settings)
    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")
    told = {"server-step": "universal", "server-radius": 10.0, "exp-concave": exp_concave}
    assert told.items() <= whole.items()
    one, other = (Run.open(tmp_path / n).load_checkpoint() for n in ("parts", "whole"))
    assert_same(one.state, other.state)


def test_a_run_with_the_universal_step_says_what_it_leaves_out(tmp_path, warnings_of_engram):
    told = "parameters are too many for the ensemble's learners for exp-concave losses"
    run(tmp_path / "other", num_rounds=1)
    assert told not in " ".join(warnings_of_engram.messages)
    run(tmp_path / "run", server_step="universal", num_rounds=1)
    assert told in " ".join(warnings_of_engram.messages)


def test_a_run_given_more_rounds_forgets_the_evaluation_of_its_former_end(tmp_path):
    settings = {"validation_fraction": 0.3, "eval_every": 2, "checkpoint_every": 1}
    run(tmp_path / "whole", num_rounds=4, **settings)
    folder = tmp_path / "parts"
    run(folder, num_rounds=3, **settings)
    assert "scored" in numbers(folder)[0][3]  # off schedule, since it was the last
    run(folder, num_rounds=4, resume=str(folder), **settings)
    assert numbers(folder) == numbers(tmp_path / "whole")
    for _ in range(2):  # once more, with nothing left to train
        one, other = (Run.open(path) for path in (folder, tmp_path / "whole"))
        assert one.scores() == other.scores()
        picked = [sorted(p.name for p in r.folder.glob("picked/*/*")) for r in (one, other)]
        assert picked[0] == picked[1]
        run(folder, num_rounds=4, resume=str(folder), **settings)


def test_a_run_that_nobody_could_score_is_scored_when_it_is_resumed(tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def fails_at_the_end(*given, server_round, **own):
        if server_round == 4:
            raise OSError("the test rows are away")
        return score(*given, server_round=server_round, **own)

    with monkeypatch.context() as patch:
        patch.setattr("engram.client.hosts.local.score", fails_at_the_end)
        with pytest.raises(RunStopped, match=r"no client could .* rows are away"):
            run(folder)
    assert Run.open(folder).results is None
    found = run(folder, resume=str(folder))
    run(tmp_path / "whole")
    assert found["clients"] == numbers(tmp_path / "whole")[1]["clients"]
    (row,) = report_rows(shown_rounds(find_runs(folder), "last"))
    assert (row["accuracy"], row["rounds"]) == (found["accuracy"], 4)


def test_refuses_to_go_on_with_other_settings(tmp_path):
    folder = tmp_path / "run"
    run(folder, num_rounds=2)
    with pytest.raises(Refused, match=r"other settings: local-moml\.eta was 0\.05, not 0\.2"):
        run(folder, num_rounds=4, resume=str(folder), eta=0.2)
    with pytest.raises(Refused, match=r"was run by `engram run`.*resume it by that"):
        run(folder, DiskStore(tmp_path / "m"), num_rounds=4, resume=str(folder))
    with pytest.raises(Refused, match=r"num-rounds must be at least 2, the rounds that .*, got 1"):
        run(folder, num_rounds=1, resume=str(folder))


def test_refuses_folders_that_are_not_free_or_not_runs(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(Refused, match="full is not empty"):
        run(tmp_path / "full")
    with pytest.raises(Refused, match="is not the folder of a run"):
        run(tmp_path / "full", resume=str(tmp_path / "full"))


def test_a_diverging_run_stops_and_keeps_its_last_good_checkpoint(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(RunStopped) as caught:
        run(folder, eta=1e30, num_rounds=9, checkpoint_every=1)
    assert "diverged: the models of clients [" in str(caught.value)
    assert "last good checkpoint" in str(caught.value)
    checkpoint = Run.open(folder).load_checkpoint()
    assert all(leaf.isfinite().all() for leaf in checkpoint.model.values())
    assert Run.open(folder).results is None


def test_a_round_waits_for_the_clients_that_it_needs(tmp_path, monkeypatch):
    class Slow(InProcessGrid):
        """Two of its nodes come late to every round; one stays away from round 3 on."""

        def get_node_ids(self):
            there = list(super().get_node_ids())
            if rounds[0] == 3:
                return there[1:]
            return there if waits[rounds[0] * 7 :] else there[2:]

        def ask(self, questions, *, timeout):
            questions = list(questions)
            rounds[0] += questions[0].kind == TRAIN
            return super().ask(questions, timeout=timeout)

    rounds, waits = [0], [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: sum(waits))
    monkeypatch.setattr(module.time, "sleep", waits.append)
    e = small(num_clients=4, clients_per_round=4, min_clients=4, num_rounds=4, timeout=30)
    t = trainer(e)
    with pytest.raises(RunStopped, match=r"3 of 4 clients can take part, but 4 are needed"):
        run_on(Slow(LocalHost(t), [[0], [1], [2], [3]]), e, tmp_path / "run", engine="vectorized")
    rows = Run.open(tmp_path / "run").rows()
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert all(row["left-out"] == 0 for row in rows[1:])
    assert sum(waits) > 30


FEW = {"num_clients": 6, "clients_per_round": 4, "min_clients": 2, "timeout": 0.2}


def late_run(
    folder, comes=(), goes=(), hosts=(range(0, 6, 3), range(1, 6, 3), range(2, 6, 3)), **s
):
    e = small(**FEW | s)
    store = DiskStore(folder.with_suffix(".memory"))
    g = Late(LocalHost(trainer(e, store)), hosts, comes, goes)
    return run_on(g, e, folder, engine="flower")


def cohorts(folder):
    return {row["round"]: row["cohort"] for row in Run.open(folder).rows() if row["round"]}


def test_a_run_begins_with_enough_clients_and_the_others_join(tmp_path, warnings_of_engram):
    found = late_run(tmp_path / "run", comes={2: 2, 3: 3}, num_rounds=6)
    rows = Run.open(tmp_path / "run").rows()
    away = {0: {1, 2, 4, 5}, 1: {1, 2, 4, 5}, 2: {1, 2, 4, 5}, 3: {2, 5}}
    for row in rows[1:]:
        absent = away.get(row["round"], set())
        assert row["cohort"] == draw_cohort(0, row["round"], 6, 4, absent=absent)
        assert row["clients"] == len(row["cohort"])
        expected = {str(c): "no node hosts it" for c in sorted(absent - set(row["cohort"]))}
        assert row.get("absent", {}) == expected
    assert found["scored"] == 6
    assert "clients [1, 4] have come, and take part from now on" in warnings_of_engram.messages
    shares = {share.client: share for share in participation(rows)}
    assert shares[0].took_part == shares[0].asked
    assert shares[2].reasons == {"no node hosts it": 3}


def test_too_few_clients_begin_nothing(tmp_path):
    with pytest.raises(RunStopped) as caught:
        late_run(tmp_path / "run", comes={2: 1, 3: 1}, min_clients=3)
    assert str(caught.value) == (
        "2 of 6 clients can take part, but 3 are needed; clients [1, 2, 4, 5]: no node hosts "
        "it; start the missing nodes, or lower min-clients"
    )
    assert not (tmp_path / "run").exists()


def test_on_nodes_a_run_begins_with_all_clients_unless_fewer_will_do(tmp_path, monkeypatch):
    monkeypatch.setattr(Late, "joins", True)
    everyone = {"comes": {2: 1, 3: 1}, "min_clients": 0}
    with pytest.raises(RunStopped) as caught:
        late_run(tmp_path / "run", **everyone)
    assert str(caught.value) == (
        "2 of 6 clients can take part, but 6 are needed; clients [1, 2, 4, 5]: no node hosts it; "
        "engram run --check says what is wrong with their tables; min-clients=2 does without them"
    )
    assert not (tmp_path / "run").exists()
    late_run(tmp_path / "run", num_rounds=2)
    again = late_run(tmp_path / "run", resume=str(tmp_path / "run"), num_rounds=3, min_clients=0)
    assert again["rounds"] == 3


def test_a_run_is_resumed_with_fewer_and_on_data_of_the_same_kind(tmp_path):
    folder = tmp_path / "run"
    late_run(folder, num_rounds=2)
    assert Run.open(folder).rows()[0]["inputs"] == "float32[1,8,8]"
    late_run(folder, comes={1: 9}, num_rounds=4, resume=str(folder))
    assert all({0, 3}.isdisjoint(cohort) for r, cohort in cohorts(folder).items() if r > 2)
    own = write_npz(
        tmp_path / "o.npz", x=np.random.default_rng(0).random((600, 9)), y=np.arange(600) % 10
    )
    e = small(**FEW, num_rounds=6, resume=str(folder))
    other = trainer(small(**FEW, num_rounds=6, dataset=own))
    with pytest.raises(RunStopped, match=r"0 of 6 .*: it has inputs float32\[9\] and 10 outputs"):
        run_on(Late(LocalHost(other), [range(6)]), e, folder, engine="flower")


def test_a_run_of_a_former_setting_does_not_go_on_without_it(tmp_path):
    late_run(folder := tmp_path / "run", num_rounds=2)
    config = Run.open(folder).config
    config["settings"]["server-radius"] = 5.0
    (folder / "config.json").write_text(json.dumps(summed(config)))
    record = Run(folder)
    with pytest.raises(Refused, match=r"with other settings: server-radius was 5\.0"):
        record.check_resumable(small(**FEW, num_rounds=4), engine="flower")


def test_a_client_that_has_gone_is_named_and_replaced(tmp_path):
    late_run(tmp_path / "run", goes={3: 1}, num_rounds=4)
    rows = Run.open(tmp_path / "run").rows()
    assert [sorted(row.get("absent", {})) for row in rows] == [[], [], [], ["2", "5"], ["2", "5"]]
    assert rows[3]["absent"]["2"] == "off line"
    assert rows[3]["cohort"] == [0, 1, 3, 4]
