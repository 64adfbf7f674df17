"""Searches of settings: what is proposed, what is dropped, and the command."""

import json
import shlex
import sys
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import ray

import engram as library
from federation.errors import Refused
from federation.fingerprint import source_root
from federation.methods import METHODS, family
from federation.methods.local import LocalMethod
from federation.settings.fields import Range, key_of, searched_range
from server.record import RunRecord
from simulations.tuning import search as searching
from simulations.tuning.folder import Tuning, _search_one
from simulations.tuning.proposals import propose
from simulations.tuning.record import Trial, best_of, read_trials
from simulations.tuning.runs import LockStep
from simulations.tuning.search import Search, search
from simulations.tuning.space import Dimension, space_of
from tests.support import small

QUICK = "num-rounds=8 clients-per-round=4 local-steps=2 hidden=8 eval-every=8"
SETS = [word for pair in QUICK.split() for word in ("--set", pair)]
FEW = [
    *("-s", "num-clients=2", "-s", "clients-per-round=2", "-s", "partition=iid"),
    *("-s", "validation-fraction=0.0001"),
]
TRAINED = family(LocalMethod.plug_in)


# --- Spaces ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_defaults_lie_where_they_are_searched(name):
    for dimension in space_of(name, {}):
        assert isinstance(dimension.within, Range)
        assert dimension.within.low <= dimension.default <= dimension.within.high


@pytest.mark.parametrize("name", TRAINED)
def test_both_ends_of_a_range_are_possible(name):
    for key, field in METHODS[name].model_fields.items():
        if (found := searched_range(field)) is not None:
            for value in (found.low, found.high):
                METHODS[name].model_validate({key_of(key): value})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("fedrep", "personal-share"), ("fedalt", "personal-share"), ("fedpac", "head-share")),
        *(("fedala", "weight-share"), ("knn-per", "k"), ("ifca", "clusters")),
        *(("fedem", "components"), ("pfedhn", "embedding"), ("pfedme", "inner-steps")),
        *(("fedadagrad", "beta1"), ("fedadam", "beta1"), ("fedadam", "beta2")),
        ("fedyogi", "beta2"),
    ],
)
def test_what_the_literature_tunes_is_searched(name, key):
    (dimension,) = (d for d in space_of(name, {}) if d.key == key)
    proposed = propose((dimension,), [], 8, seed=0, higher=True)
    kind = type(METHODS[name].defaults()[key])
    assert len({each[key] for each in proposed}) > 3
    assert {type(each[key]) for each in proposed} == {kind}


def test_only_who_fine_tunes_searches_its_step_size():
    assert "adapt-lr" in [dimension.key for dimension in space_of("fedavg", {})]
    assert "adapt-lr" not in [dimension.key for dimension in space_of("pfedme", {})]


def test_what_is_asked_for_takes_the_place_of_what_is_declared():
    space = space_of(
        "fedavg", {"adapt-lr": 0.1}, ["eta=0.5..2", "batch-size=5,10", "local-steps=1..9:log"]
    )
    eta, batch, steps = space
    assert eta == Dimension("eta", Range(0.5, 2.0), 0.1)
    assert (batch.within, batch.whole) == ((5, 10), True)
    assert (steps.within, steps.whole) == (Range(1, 9, log=True), True)
    (weights,) = (d for d in space_of("apfl", {}, ["adaptive=true,false"]) if d.key == "adaptive")
    assert weights.within == (True, False)


# --- Proposals -------------------------------------------------------------------------------

SPACE = (
    Dimension("eta", Range(1e-3, 1, log=True), 0.1),
    Dimension("local-steps", Range(1, 20), 5, whole=True),
    Dimension("order", ("shuffled", "stream"), "shuffled"),
)


def test_proposals_begin_with_the_defaults_and_lie_in_the_space():
    first, *others = propose(SPACE, [], 20, seed=3, higher=True)
    assert first == {"eta": 0.1, "local-steps": 5, "order": "shuffled"}
    for each in others:
        assert 1e-3 <= each["eta"] <= 1
        assert each["local-steps"] in range(1, 21)
        assert each["order"] in ("shuffled", "stream")
    # Evenly by logarithm: half of them below the geometric mean of both ends.
    assert 4 <= sum(each["eta"] < 10**-1.5 for each in others) <= 15


def test_proposals_are_a_function_of_what_is_known_and_the_seed():
    known = [
        Trial(i, each, "done", 8, (i / 9,))
        for i, each in enumerate(propose(SPACE, [], 9, seed=0, higher=True))
    ]
    one, again, other = (propose(SPACE, known, 5, seed=seed, higher=True) for seed in (0, 0, 1))
    assert one == again != other


@pytest.mark.parametrize("higher", [True, False])
def test_proposals_go_where_scores_are_better(higher):
    space = SPACE[:1]
    known = []
    for number in range(6):
        for each in propose(space, known[: 8 * number], 8, seed=1, higher=higher):
            far = abs(np.log10(each["eta"]) + 2)  # from 0.01
            known.append(Trial(len(known), each, "done", 8, (-far if higher else far,)))
    first, last = (
        np.median([abs(trial.scores[0]) for trial in some]) for some in (known[:16], known[24:])
    )
    assert last < 0.8 * first


# --- Searches --------------------------------------------------------------------------------


class FakeSteps:
    """Runs whose score after a round is the round times eta, and that stop above eta = 1."""

    def __init__(self):
        self.members = []

    def join(self, experiments):
        self.members += [FakeMember(e) for e in experiments]
        return range(len(self.members) - len(experiments), len(self.members))

    def advance(self, rounds, some, on_round):
        for number in range(1, rounds + 1):
            on_round(number)
        for i in some:
            self.members[i].trained = rounds


class FakeMember:
    def __init__(self, experiment):
        self.experiment, self.trained = experiment, 0
        self.stopped = "diverged in round 1" if experiment.own.eta > 1 else ""

    def validated(self, rung):
        assert self.trained == rung
        return self.experiment.own.eta * rung / 100


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(searching, "LockStep", FakeSteps)


def find(trials=8, known=(), seeds=(0, 1), **fixed):
    """Returns the trials of a search, and all that was noted of them."""
    given = {"method": "fedavg", "num-rounds": 40, "adapt-lr": 0.1, **fixed}
    notes = []
    plan = Search(given, space_of("fedavg", given), trials, seeds)
    found = search(plan, known, notes.append, lambda done, total, words: None)
    return found, notes


def test_rungs_drop_the_worse_half_and_keep_the_defaults(fake):
    found, _ = find(trials=16)
    batch = found[:4]
    by_eta = sorted(batch, key=lambda trial: -trial.settings["eta"])
    assert by_eta[0].state == "done"
    assert found[0].state == "done"  # the defaults
    assert {trial.round for trial in found} == {10, 20, 40}
    for start in range(4, 16, 4):
        assert sorted(trial.round for trial in found[start : start + 4]) == [10, 10, 20, 40]
    for trial in found:
        assert trial.scores == pytest.approx([trial.settings["eta"] * trial.round / 100] * 2)
    assert best_of(found, higher=True).settings["eta"] == max(
        trial.settings["eta"] for trial in found if trial.round == 40
    )


def test_a_trial_that_diverges_is_the_worst_and_no_error(fake):
    given = {"method": "fedavg", "num-rounds": 40}
    plan = Search(given, space_of("fedavg", {"adapt-lr": 1}, ["eta=0.1..9"]), 12, (0,))
    found = search(plan, [], lambda trial: None, lambda *_: None)
    lost = [trial for trial in found if trial.settings["eta"] > 1]
    assert lost
    assert {(trial.state, trial.value) for trial in lost} == {("diverged", None)}
    assert best_of(found, higher=True).settings["eta"] <= 1


def test_settings_that_contradict_each_other_are_a_trial(fake):
    given = {"method": "pfedme", "num-rounds": 8, "eta": 0.1, "lambda": 15.0}
    plan = Search(given, space_of("pfedme", given, ["alpha=0.01,10"]), 8, (0,))
    found = search(plan, [], lambda trial: None, lambda *_: None)
    bad = next(trial for trial in found if trial.state == "impossible")
    assert bad.reason == "alpha * lambda must be below 2, got 150.0"


def test_settings_that_do_not_fit_the_data_are_a_trial():
    given = {"method": "fedavg", "num-rounds": 1, "hidden": "8", "eta": 0.1, "adapt-lr": 0.1}
    space = space_of("fedavg", given, ["batch-size=4..999"])
    found = search(Search(given, space, 4, (0,)), [], lambda trial: None, lambda *_: None)
    assert [trial.state for trial in found] == ["done", *["impossible"] * 3]
    assert "fewer than batch-size" in found[1].reason
    assert best_of(found, higher=True) == found[0]


def test_a_search_that_goes_on_finds_what_it_would_have_found(fake):
    whole, notes = find(trials=16)
    for cut in (3, 9, 17):
        known = list({trial.number: trial for trial in notes[:cut]}.values())
        assert find(trials=16, known=known)[0] == whole


def test_every_setting_is_tried_on_the_same_seeds(fake):
    runs = Search({"method": "fedavg"}, (), 1, (4, 7)).experiments({"eta": 0.3})
    assert [(run.seed, run.own.eta) for run in runs] == [(4, 0.3), (7, 0.3)]


def test_what_decides_is_on_validation_rows_and_of_the_model_that_serves():
    for name, suffix in (("fedavg", ""), ("pfedme", "-own")):
        e = small(method=name, unseen_clients=3, num_rounds=2)
        steps = LockStep([e])
        steps.advance(2, [0])
        (member,) = steps.members
        columns = {key: column.numpy() for key, column in member.scores(2).columns.items()}
        own = columns[f"validation-accuracy{suffix}"]
        served = np.where(np.isnan(own), columns["validation-accuracy"], own)
        seen = [c for c in range(e.num_clients) if c not in member.scoring.unseen]
        assert len(seen) == e.num_clients - 3
        assert member.validated(2) == pytest.approx(served[seen].mean())


# --- The command -----------------------------------------------------------------------------


def tune(engram, *words):
    return engram("tune", *words, *SETS)


@pytest.mark.usefixtures("drawn")
def test_tune_finds_settings_that_other_commands_take(engram):
    status, out, err = tune(
        engram,
        *("fedavg", "pfedme", "--trials", "5", "--seeds", "2", "--out", "t", "--json"),
        *("--processes", "1"),
    )
    assert status == 0
    assert "pfedme: 16 of 16 rounds" in err  # of two batches
    best = json.loads(out.splitlines()[-1])["best"]
    assert engram("show", "t", "--json")[1] == out
    table = pd.read_csv("t/fedavg/trials.csv")
    assert list(table.columns[:3]) == ["trial", "eta", "adapt-lr"]
    last = table[table["round"] == 8]
    assert best["fedavg"]["eta"] == last.loc[last["score"].idxmax(), "eta"]
    assert {"trials.png", "trials.jsonl", "best.toml"} <= {
        p.name for p in Path("t/pfedme").iterdir()
    }
    text = Path("t/fedavg/best.toml").read_text()
    assert text.startswith("# Found by engram tune fedavg pfedme: 5 trials each, seeds 0 to 1.")
    assert tomllib.loads(text)["fedavg"]["eta"] == best["fedavg"]["eta"]
    printed = engram("show", "t")[1].splitlines()[-1].removeprefix("next: engram ")
    assert printed == "compare fedavg pfedme --config t/best.toml"
    assert engram(*printed.split(), "--seeds", "1", "--out", "c")[0] == 0
    for name in ("local", "fedavg", "pfedme"):  # on what they were tuned on, but for the seed
        settings = RunRecord.open(Path(f"c/{name}-seed2")).config["settings"]
        assert {"num-rounds": 8, "hidden": "8", "seed": 2}.items() <= settings.items()
        own = METHODS[name].all_keys()
        for key, value in best.get(name, {}).items():
            assert settings[f"{name}.{key}" if key in own else key] == value


def test_the_line_that_tune_prints_runs_what_it_found(engram):
    fixed = ("--set", "partition=iid", "--set", "pfedme.lambda=2", "--set", "seed=5")
    words = ("pfedme", "--trials", "4", "--seeds", "2", "--out", "a b")
    status, out, _ = tune(engram, *words, *fixed)
    assert status == 0
    printed = shlex.split(out.splitlines()[-1].removeprefix("next: engram "))
    assert printed == ["run", "pfedme", "--config", "a b/pfedme/best.toml"]
    assert engram(*printed, "--out", "r")[0] == 0
    settings = RunRecord.open(Path("r")).config["settings"]
    found = tomllib.loads(Path("a b/pfedme/best.toml").read_text())
    assert found["pfedme"].pop("lambda") == settings["pfedme.lambda"] == 2
    assert settings["pfedme.eta"] == found["pfedme"]["eta"]
    assert (settings["num-rounds"], settings["partition"], settings["seed"]) == (8, "iid", 7)
    assert engram("run", "fedavg", *printed[2:])[2] == (
        "engram: METHOD must be pfedme, as --config or --set says, got fedavg\n"
    )
    assert engram("compare", *printed[1:], "--seeds", "1", "--out", "c")[0] == 0
    assert RunRecord.open(Path("c/local-seed7")).config["settings"]["partition"] == "iid"


@pytest.mark.processes
def test_processes_find_what_one_finds(engram):
    for folder, processes in (("one", "1"), ("two", "2")):
        words = ("fedavg", "pfedme", "--trials", "2", "--seeds", "1", "--processes", processes)
        assert tune(engram, *words, "--out", folder)[0] == 0
    for file in ("best.toml", "fedavg/trials.csv", "pfedme/trials.csv"):
        assert (Path("one") / file).read_text() == (Path("two") / file).read_text()


@pytest.mark.processes
@pytest.mark.xdist_group("ray")
def test_a_cluster_finds_what_one_process_finds(engram, monkeypatch, request):
    monkeypatch.setenv("PYTHONPATH", str(source_root()))  # Ray's workers run these sources, too
    request.addfinalizer(ray.shutdown)
    few = ("fedavg", "pfedme", "--trials", "2", "--seeds", "1")
    for folder, where in (("one", ("--processes", "1")), ("two", ("--ray", "local"))):
        assert tune(engram, *few, *where, "--out", folder)[0] == 0
    for file in ("best.toml", "fedavg/trials.csv", "pfedme/trials.csv"):
        assert (Path("one") / file).read_text() == (Path("two") / file).read_text()


def test_a_machine_without_the_folder_is_named(tmp_path):
    search_there = partial(_search_one, Tuning({}, (), 1, [0]), tmp_path, tmp_path / "t", True)
    with pytest.raises(Refused, match=rf"all machines of the cluster share: .* lacks {tmp_path}/t"):
        search_there("fedavg", lambda *told: None)


def test_a_trials_score_is_that_of_its_runs(engram, tmp_path):
    assert tune(engram, "fedavg", "--trials", "1", "--seeds", "2", "--out", "t")[0] == 0
    (trial,) = read_trials(Path("t/fedavg"))
    for seed, score in enumerate(trial.scores):
        engram("run", "fedavg", *SETS, "--set", f"seed={seed}", "--out", f"r{seed}")
        results = RunRecord.open(Path(f"r{seed}")).results
        assert score == pytest.approx(results["validation-accuracy"], abs=1e-6)


def test_ctrl_c_keeps_what_is_known_and_resume_goes_on(engram, monkeypatch):
    words = ("fedavg", "--trials", "8", "--seeds", "1")
    assert tune(engram, *words, "--out", "whole")[0] == 0
    advance = LockStep.advance

    def interrupted(self, rounds, some, on_round):
        advance(self, rounds, some, on_round)
        if Path("parts").exists() and len(read_trials(Path("parts/fedavg"))) > 4 and rounds == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LockStep, "advance", interrupted)
        status, _, err = tune(engram, *words, "--out", "parts")
    assert status == 130
    assert "interrupted; go on with: engram tune --resume parts" in err
    assert len(read_trials(Path("parts/fedavg"))) == 8
    assert Path("parts/fedavg/best.toml").is_file()
    assert engram("show", "parts")[1].splitlines()[-2:] == [
        "recorded in parts: tuning.json, fedavg/",
        "next: engram tune --resume parts",
    ]
    with Path("parts/fedavg/trials.jsonl").open("a") as file:
        file.write('{"number": 9, "sett')  # as a crash would leave it
    assert engram("tune", "--resume", "parts")[0] == 0
    for name in ("trials.csv", "best.toml"):
        one, other = (Path(f"{folder}/fedavg/{name}").read_text() for folder in ("whole", "parts"))
        assert one == other


def test_a_comparison_of_tuned_methods_is_on_other_seeds(engram):
    words = ("compare", "fedavg", "--tuned", "--trials", "4", "--seeds", "2", *SETS)
    assert engram(*words, "--out", "c")[0] == 0
    assert json.loads(Path("c/tuning/tuning.json").read_text())["seeds"] == [2, 3]
    best = tomllib.loads(Path("c/tuning/fedavg/best.toml").read_text())["fedavg"]["eta"]
    for seed in (0, 1):
        settings = RunRecord.open(Path(f"c/fedavg-seed{seed}")).config["settings"]
        assert (settings["seed"], settings["fedavg.eta"]) == (seed, best)
    before = Path("c/tuning/fedavg/trials.jsonl").read_bytes()
    assert engram("compare", "--resume", "c")[0] == 0
    assert Path("c/tuning/fedavg/trials.jsonl").read_bytes() == before


def test_if_all_trials_diverge_it_says_so_and_keeps_them(engram):
    status, _, err = tune(engram, "fedavg", "--trials", "2", "--set", "eta=1e30", "--out", "t")
    assert status == 1
    assert err.splitlines()[-1] == ("engram: no trial has a score: trial 0: diverged in round 1")
    assert {trial.state for trial in read_trials(Path("t/fedavg"))} == {"diverged"}
    assert engram("show", "t")[1].splitlines() == [
        "fedavg: no trial has a score: trial 0: diverged in round 1",
        "recorded in t: tuning.json, fedavg/",
    ]


def test_a_search_that_was_killed_before_it_knew_anything_goes_on(engram):
    Tuning({"fedavg": {"method": "fedavg"}}, [], 4, [0]).save(Path("t"))
    out = "recorded in t: tuning.json\nnext: engram tune --resume t\n"
    assert engram("show", "t") == (0, out, "")


def test_a_comparison_that_has_only_tuned_so_far_names_what_it_has(engram, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    words = ("compare", "fedavg", "--tuned", "--processes", "1", "--out", "c", *SETS)
    with monkeypatch.context() as patch:
        patch.setattr(LockStep, "advance", interrupted)
        status, _, err = engram(*words)
    assert (status, err) == (130, "engram: interrupted; go on with: engram compare --resume c\n")
    assert engram("show", "c")[1].splitlines() == [
        "recorded in c: comparison.json, tuning/",
        "next: engram compare --resume c",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "METHOD must be some of local-moml"),
        (("nonsense",), "method must be one of"),
        (("molar",), "tune takes methods that train networks, got molar"),
        (("fedavg", "-s", "eta=0.1", "-s", "adapt-lr=0.1"), "fedavg has nothing to be tuned"),
        (("fedavg", "--search", "eta=1..0.1"), "with LOW < HIGH"),
        (("fedavg", "--search", "eta=0..1:log"), "with 0 < LOW < HIGH"),
        (("fedavg", "--search", "eta"), "--search must be KEY=LOW..HIGH"),
        (("fedavg", "--search", "eta=5"), "--search must be KEY=LOW..HIGH"),
        (("fedavg", "--search", "etta=1..2"), "etta is not a setting (did you mean eta?)"),
        *(
            (("fedavg", "--search", text), f"must have the same {text.partition('=')[0]}, to be")
            for text in (
                *("num-rounds=2,3", "seed=1..4", "out=a,b", "device=cpu,cuda", "num-clients=9,20"),
                *("validation-fraction=0..0.5", "protocol=standard,few-shot", "metrics=auc,f1"),
                *("task=classification,regression", "unseen-clients=0..3", "data-dir=a,b"),
            )
        ),
        (("fedavg", "--search", "local-steps=0.5..4:log"), "must be a valid integer, got 0.5"),
        (("fedavg", "--search", "local-steps=0.2..0.4"), "must be a valid integer, got 0.2"),
        (("fedavg", "--search", "eta=0..1"), "fedavg.eta must be greater than 0, got 0.0"),
        (("fedavg", "--search", "eta=0.1,abc"), "fedavg.eta must be a valid number, got 'abc'"),
        (("fedavg", "--search", "hidden=0..3"), "hidden is no number: give hidden=VALUE,VALUE"),
        (("apfl", "--search", "adaptive=0..1"), "adaptive is no number: give adaptive=VALUE"),
        (("fedavg", "--search", "model=mlp,foo"), "model must be one of mlp, cnn"),
        (
            ("fedavg", "--search", "batch-size=5,1000"),
            "--search batch-size=1000: client 0 has 32 training rows",
        ),
        (
            ("local-moml", "--search", "initial-batch-size=5,1000"),
            "--search initial-batch-size=1000: client 0 has 32 training rows",
        ),
        (("fedavg", "--search", "."), "--search must be KEY=LOW..HIGH"),
        (("fedavg", "-s", "eta=0.1", "--search", "eta=1..2"), "eta is fixed by --set"),
        (("fedavg", "--search", "pfedme.eta=1..2"), "for a method that does not take part: pfedme"),
        (("fedavg", "-s", "protocol=few-shot"), "tuning needs validation rows"),
        (("fedavg", "-s", "validation-fraction=0"), "tuning needs validation rows"),
        (("fedavg", *FEW), "tuning needs at least 10 validation rows in all, got 2"),
        (("fedavg", "-s", "eta=-1"), "eta must be greater than 0"),
        (("fedavg", "--minutes", "0"), "--minutes must suffice for one batch of trials, got 0"),
        (("fedavg", "--minutes", "nan"), "--minutes must be a number of at least 0, got nan"),
        (("--resume", "nowhere"), "no run 'nowhere'"),
        (("--resume", "nowhere", "--trials", "3"), "give --minutes, --processes or --ray"),
        (
            ("fedavg", "--ray", "local", "--processes", "2"),
            "--ray and --processes exclude each other: a cluster's cores are all used",
        ),
        (("fedavg", "--ray", "127.0.0.1:1"), "--ray 127.0.0.1:1: no cluster answers there"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(engram, words, message):
    status, _, err = engram("tune", *words)
    assert status == 2
    assert message in err.splitlines()[-1]
    assert not list(Path().iterdir())


def test_without_optuna_a_line_says_how_to_get_it(engram, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    status, _, err = engram("tune", "fedavg")
    assert (status, err) == (2, "engram: tuning needs Optuna: pip install 'engram[tune]'\n")
    assert not list(Path().iterdir())


# --- In Python -------------------------------------------------------------------------------


def test_data_in_memory_are_tuned_on(tmp_path):
    rng = np.random.default_rng(0)
    data = [
        (x, (x[:, client % 2] > 0).astype(int))
        for client in range(4)
        for x in [rng.normal(size=(40, 5)).astype(np.float32)]
    ]
    quick = {"num_rounds": 4, "local_steps": 2, "hidden": "6", "progress": False}
    found = library.tune(data, methods=["fedavg"], trials=4, seeds=2, out=tmp_path / "t", **quick)
    table = found.table("fedavg")
    assert len(table) == 4
    last = table[table["round"] == 4]
    assert found.best["fedavg"]["eta"] == last.loc[last["score"].idxmax(), "eta"]
    assert found.plot("fedavg").axes[0].get_xscale() == "log"
    with pytest.raises(Refused, match="tune takes methods that train networks, got molar"):
        library.tune(data, methods=["molar"], **quick)
    with pytest.raises(Refused, match="search must be a list of texts, got"):
        library.tune(data, methods=["fedavg"], search="eta=0.1..1", **quick)
