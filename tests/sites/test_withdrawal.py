"""Withdrawals: what has learned from a client is named, and trained anew without it."""

import json

import numpy as np
import pytest

from engram.data.load_federation import federated_data
from engram.runs.run import Run
from engram.server.run import run as run_on
from engram.settings.errors import Refused
from engram.settings.files import read_json
from engram.simulations.engine import simulate
from engram.sites.withdrawal import withdrawal_of
from engram.wire.checksums import checked
from tests.samples import sampled
from tests.server.members import ROWS, ScriptedFederation
from tests.support import assert_same, small_of_any

ROUNDS, CLIENTS = 4, 4


def experiment(method, **change):
    given = {"num_clients": CLIENTS, "clients_per_round": 3, "dataset": ROWS}
    given |= {"num_rounds": ROUNDS, "eval_every": 2, "checkpoint_every": 1, "timeout": 5.0}
    given["partition"] = "natural"
    return small_of_any(method=method, **given | change)


def begun(folder, method="fedavg", **change):
    simulate(experiment(method, **change), folder)
    return Run.open(folder)


def never_a_member(gone, record, state, method, **change):
    """A run on nodes whose script is a record's participation, without a client from the start."""
    everyone = set(range(CLIENTS))
    members = {row["round"]: {*row.get("members", everyone)} - {gone} for row in record.rows()}
    cohorts = {row["round"]: {*row.get("cohort", everyone)} - {gone} for row in record.rows()}
    script = {r: (members[r], cohorts[r]) for r in members}
    e = experiment(method, **change)
    grid = ScriptedFederation(e, state, script)
    grid.clients = CLIENTS
    run_on(grid, e, state / "run", engine="flower")
    return Run.open(state / "run")


def last(record):
    return record.load_checkpoint()


def all_of(record):
    return last(record).model | last(record).state


METHODS = ("fedavg", "scaffold", "ditto", "fedfomo", "pfedhn", "fedem")


@pytest.mark.parametrize("method", sampled(METHODS, ["scaffold", "ditto", "pfedhn"]))
def test_the_new_run_is_as_if_the_client_had_never_been_a_member(tmp_path, engram, method):
    record = begun(tmp_path / "all", method)
    gone = record.rows()[1]["cohort"][0]
    assert engram("withdraw", "all", str(gone))[0] == 0
    new = Run.open(tmp_path / f"all-without-{gone}")
    wanted = never_a_member(gone, record, tmp_path / "nodes", method)
    assert_same(last(new).model, last(wanted).model, atol=1e-6)
    assert_same(last(new).state, last(wanted).state, atol=1e-6)
    with pytest.raises(AssertionError):
        assert_same(all_of(new), all_of(record), atol=1e-3)
    for row, other, before in zip(new.rows(), wanted.rows(), record.rows(), strict=True):
        assert row["members"] == other["members"] == sorted({*range(CLIENTS)} - {gone})
        if row["round"]:
            assert row["cohort"] == sorted({*before["cohort"]} - {gone})
    assert new.results["clients"]["ids"] == [c for c in range(CLIENTS) if c != gone]
    settings = new.config["settings"]
    assert settings["participation"] == str(tmp_path / "all")
    assert settings["without"] == str(gone)


def test_units_are_those_of_the_other_clients(tmp_path, engram):
    record = begun(tmp_path / "all", standardize="federation")
    assert engram("withdraw", "all", "3")[0] == 0
    new = Run.open(tmp_path / "all-without-3")
    wanted = never_a_member(3, record, tmp_path / "nodes", "fedavg", standardize="federation")
    units, before = new.rows()[0]["units"], record.rows()[0]["units"]
    train = federated_data(experiment("fedavg", standardize="none")).train
    others = np.concatenate([train.x[train.rows[client]] for client in range(3)])
    np.testing.assert_allclose(units["inputs"]["mean"], others.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(units["inputs"]["mean"], wanted.rows()[0]["units"]["inputs"]["mean"])
    assert units["inputs"]["mean"] != pytest.approx(before["inputs"]["mean"], rel=1e-2)
    assert_same(last(new).model, last(wanted).model, atol=1e-6)


def test_clients_of_a_part_of_a_federation_cannot_be_left_out_by_number(tmp_path):
    e = experiment("fedavg", without="1", clients_per_round=2)
    grid = ScriptedFederation(e, tmp_path)  # whose federation has three clients
    with pytest.raises(Refused, match=r"without must be empty unless num-clients is .* 3, got '1'"):
        run_on(grid, e, tmp_path / "run", engine="flower")
    assert not (tmp_path / "run").exists()


def test_what_has_its_updates_is_named_and_nothing_is_destroyed(tmp_path, engram):
    record = begun(tmp_path / "runs" / "all")
    before = {path: path.read_bytes() for path in record.folder.rglob("*") if path.is_file()}
    gone = record.rows()[1]["cohort"][0]
    part = sum(gone in row.get("cohort", ()) for row in record.rows())
    begun(tmp_path / "runs" / "later", start_from=str(record.folder))
    begun(tmp_path / "runs" / "last", start_from=str(tmp_path / "runs" / "later"))
    begun(tmp_path / "runs" / "again", participation=str(record.folder))
    begun(tmp_path / "runs" / "another")
    exported = [tmp_path / f"{run}-model" for run in ("all", "later", "another", "lost")]
    for run, out in zip(("all", "later", "another", "all"), exported, strict=True):
        assert engram("export", f"runs/{run}", "--common", "--out", out)[0] == 0
    exported[3].rename(tmp_path / "elsewhere")
    status, out, _ = engram("withdraw", "all", f"client-{gone}", "--json")
    assert status == 0
    *lines, told = out.splitlines()
    assert lines[0] == (
        f"client {gone} was a member of runs/all from the beginning on: {part} rounds learned from "
        "it"
    )
    models = [f"runs/all/checkpoints/round-{number}" for number in (ROUNDS - 1, ROUNDS)]
    models += [f"runs/all/{path}" for path in picked(record.folder)]
    heirs = ["runs/again", "runs/later", "runs/last"]
    named = [line.partition(": ")[2].partition(",")[0] for line in lines if "has its up" in line]
    assert named == [*models, *heirs, *map(str, [exported[0], exported[3], exported[1]])]
    gone_since = f"has its updates: {exported[3]}, exported, and moved or deleted since"
    assert gone_since in lines
    doomed = [*models, "runs/all/scores.jsonl", "runs/all/results.json"]
    doomed += [str(exported[0]), str(exported[1])]
    assert [line.partition(": ")[2] for line in lines if line.startswith("delete:")] == doomed
    told = json.loads(told)
    assert told["delete"] == doomed
    assert told["exports"] == list(map(str, [exported[0], exported[3], exported[1]]))
    assert told["runs"] == [str(tmp_path / heir) for heir in heirs]
    note = checked(read_json(tmp_path / told["retrained"] / "withdrawal.json"))
    assert (note["run"], note["client"], note["since"]) == (str(record.folder), gone, 0)
    assert note["models"] == [str(tmp_path / model) for model in models]
    assert before == {path: path.read_bytes() for path in before}
    status, _, err = engram("withdraw", "all", str(gone))
    assert (status, err) == (
        2,
        f"engram: runs/all-without-{gone} is there already: give out another folder, or resume "
        "it\n",
    )


def picked(folder):
    found = sorted(folder.glob("picked/*/round-*"), key=lambda p: (p.parent, int(p.name[6:])))
    return [path.relative_to(folder) for path in found if path.name != "round-0"]


def test_two_withdraw_one_after_the_other(tmp_path, engram):
    record = begun(tmp_path / "all", "scaffold", clients_per_round=4)
    assert engram("withdraw", "all", "3")[0] == 0
    assert engram("withdraw", "all-without-3", "1", "--out", "two")[0] == 0
    two = Run.open(tmp_path / "two")
    settings = two.config["settings"]
    assert (settings["participation"], settings["without"]) == (str(record.folder), "1,3")
    assert [row["members"] for row in two.rows()] == [[0, 2]] * (ROUNDS + 1)
    both = Run.open(tmp_path / "all-without-3")
    wanted = never_a_member(1, both, tmp_path / "nodes", "scaffold", clients_per_round=4)
    assert_same(last(two).model, last(wanted).model, atol=1e-6)


def test_rounds_before_the_client_came_are_not_trained_again(tmp_path, engram):
    e = experiment("scaffold", num_clients=3)
    there = {0, 1, 2}
    script = {n: (there | ({3} if n == ROUNDS else set()),) * 2 for n in range(ROUNDS + 1)}
    run_on(ScriptedFederation(e, tmp_path / "a", script), e, tmp_path / "there", engine="flower")
    replayed = {"clients_per_round": 4, "participation": str(tmp_path / "there")}
    record = begun(tmp_path / "all", "scaffold", **replayed)
    found = withdrawal_of(record.folder, "3", [])
    assert (found.since, found.base, found.took_part) == (ROUNDS, ROUNDS - 1, 1)
    assert [path.name for path in found.models if path.parent.name == "checkpoints"] == [
        f"round-{ROUNDS}"
    ]
    _, out, _ = engram("withdraw", "all", "3")
    new = Run.open(tmp_path / "all-without-3")
    assert f"from the checkpoint of round {ROUNDS - 1}: all-without-3" in out
    assert new.rows()[:ROUNDS] == record.rows()[:ROUNDS]  # the same to the millisecond
    assert new.rows()[ROUNDS]["members"] == [0, 1, 2]
    script = dict.fromkeys(range(ROUNDS + 1), (there, there))
    run_on(ScriptedFederation(e, tmp_path / "b", script), e, tmp_path / "never", engine="flower")
    never = Run.open(tmp_path / "never")
    assert_same(last(new).model, last(never).model, atol=1e-6)
    assert_same(last(new).state, last(never).state, atol=1e-6)


def test_a_run_that_started_from_another_starts_from_the_retrained_one(tmp_path, engram):
    begun(tmp_path / "first")
    begun(tmp_path / "second", start_from=str(tmp_path / "first"), seed=1)
    status, _, err = engram("withdraw", "second", "2")
    assert (status, err) == (
        2,
        f"engram: second started from {tmp_path}/first, which has updates of client 2: withdraw it "
        "there first, and name the run that comes of it by --from RUN\n",
    )
    assert engram("withdraw", "first", "2")[0] == 0
    status, _, err = engram("withdraw", "second", "2", "--from", "first")
    assert (status, err) == (
        2,
        "engram: --from must be a run without updates of client 2, got 'first'\n",
    )
    assert engram("withdraw", "second", "2", "--from", "first-without-2")[0] == 0
    new = Run.open(tmp_path / "second-without-2")
    assert new.config["settings"]["start-from"] == str(tmp_path / "first-without-2")
    record = Run.open(tmp_path / "second")
    started = {"start_from": str(tmp_path / "first-without-2"), "seed": 1}
    wanted = never_a_member(2, record, tmp_path / "nodes", "fedavg", **started)
    assert_same(last(new).model, last(wanted).model, atol=1e-6)


def test_what_cannot_be_withdrawn_is_refused_and_nothing_is_written(tmp_path, engram):
    begun(tmp_path / "all")
    begun(tmp_path / "without", without="1")
    begun(tmp_path / "alone", clients_per_round=1, num_rounds=1)
    alone = Run.open(tmp_path / "alone").rows()[1]["cohort"][0]
    (tmp_path / "stopped").mkdir()
    for path in (tmp_path / "all").iterdir():
        if path.is_file() and path.name != "results.json":
            (tmp_path / "stopped" / path.name).write_bytes(path.read_bytes())
    before = sorted(tmp_path.iterdir())
    for words, says in (
        (("all", "4"), "CLIENT must be the name or number of one of its 4 clients, got '4'"),
        (("all", "north"), "CLIENT must be the name or number of one of its 4 clients"),
        (("without", "1"), "without has nothing of client 1, which was never a member of it"),
        (("stopped", "1"), "stopped is not finished, so that not all of its rounds"),
        (("alone", str(alone)), "clients without whom 1 others take part in each round"),
        (("all", "1", "--from", "without"), "--from is for a run that started from another"),
        (("all", "1", "--federation", "fed"), "--federation is for a run on nodes"),
    ):
        status, _, err = engram("withdraw", *words)
        assert status == 2, words
        assert says in err
        assert sorted(tmp_path.iterdir()) == before, words


def test_a_run_takes_no_part_of_clients_that_withdrew(tmp_path):
    record = begun(tmp_path / "run", "scaffold", without="0,2", clients_per_round=4)
    assert {tuple(row["members"]) for row in record.rows()} == {(1, 3)}
    assert {tuple(row["cohort"]) for row in record.rows()[1:]} == {(1, 3)}
    assert record.results["clients"]["ids"] == [1, 3]
    with pytest.raises(Refused, match="without must be clients' numbers with commas"):
        experiment("fedavg", without="north")
