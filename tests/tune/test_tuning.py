"""`engram tune`: what it writes and prints, and what it refuses; and `engram.tune`."""

import json
import re
import shlex
import sys
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import ray
import torch

import engram as library
from engram.runs.run import Run
from engram.settings.errors import Refused
from engram.settings.families import METHODS
from engram.settings.fingerprint import source_root
from engram.tune.folder import Tuning, _search_one
from engram.tune.record import read_trials
from engram.tune.runs import Stacked
from tests.samples import entry

QUICK = "num-rounds=8 clients-per-round=4 local-steps=2 hidden=8 eval-every=8"
SETS = [word for pair in QUICK.split() for word in ("--set", pair)]
FEW = [
    *("-s", "num-clients=2", "-s", "clients-per-round=2", "-s", "partition=iid"),
    *("-s", "validation-fraction=0.0001"),
]


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
    assert "tuning pfedme (2 of 2): 16 of 16 rounds" in err  # of two batches
    assert re.search(r" s, trials 1 to 4 of 5, best accuracy .* %, about \d+ s left\n", err)
    best = json.loads(out.splitlines()[-1])["best"]
    assert engram("show", "t", "--json")[1] == out
    table = pd.read_csv("t/fedavg/trials.csv")
    assert list(table.columns[:4]) == ["trial", "eta", "adapt-lr", "state"]
    last = table[table["round"] == 8]
    assert best["fedavg"]["eta"] == last.loc[last["score"].idxmax(), "eta"]
    files = {path.name for path in Path("t/pfedme").iterdir()}
    assert {"trials.png", "trials.jsonl", "best.toml"} <= files
    text = Path("t/fedavg/best.toml").read_text()
    assert text.startswith("# Found by engram tune fedavg pfedme: 5 trials each, seeds 0 to 1.")
    assert tomllib.loads(text)["fedavg"]["eta"] == best["fedavg"]["eta"]
    printed = engram("show", "t")[1].splitlines()[-1].removeprefix("next: engram ")
    assert printed == "compare fedavg pfedme --config t/best.toml"
    assert engram(*printed.split(), "--seeds", "1", "--out", "c")[0] == 0
    for name in ("local", "fedavg", "pfedme"):  # on what they were tuned on, but for the seed
        settings = Run.open(Path(f"c/{name}-seed2")).config["settings"]
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
    settings = Run.open(Path("r")).config["settings"]
    found = tomllib.loads(Path("a b/pfedme/best.toml").read_text())
    assert found["pfedme"].pop("lambda") == settings["pfedme.lambda"] == 2
    assert settings["pfedme.eta"] == found["pfedme"]["eta"]
    assert (settings["num-rounds"], settings["partition"], settings["seed"]) == (8, "iid", 7)
    told = "engram: METHOD must be pfedme, as --config or --set says, got fedavg\n"
    assert engram("run", "fedavg", *printed[2:])[2] == told
    assert engram("compare", *printed[1:], "--seeds", "1", "--out", "c")[0] == 0
    assert Run.open(Path("c/local-seed7")).config["settings"]["partition"] == "iid"


@pytest.mark.processes
@pytest.mark.parametrize("where", [("--processes", "2"), ("--ray", "local")], ids=str)
def test_processes_and_a_cluster_find_what_one_process_finds(engram, monkeypatch, request, where):
    monkeypatch.setenv("PYTHONPATH", str(source_root()))  # Ray's workers run these sources, too
    request.addfinalizer(ray.shutdown)
    few = ("fedavg", "pfedme", "--trials", "2", "--seeds", "1")
    for folder, there in (("one", ("--processes", "1")), ("two", where)):
        assert tune(engram, *few, *there, "--out", folder)[0] == 0
    for file in ("best.toml", "fedavg/trials.csv", "pfedme/trials.csv"):
        assert (Path("one") / file).read_text() == (Path("two") / file).read_text()


def test_a_machine_without_the_folder_is_named(tmp_path):
    search_there = partial(_search_one, Tuning({}, (), 1, [0]), tmp_path, tmp_path / "t", True)
    with pytest.raises(Refused, match=rf"all machines of the cluster share: .* lacks {tmp_path}/t"):
        search_there("fedavg", lambda *told: None)


def test_the_step_size_of_fine_tuning_is_the_best_for_what_was_found(engram):
    words = ("fedavg", "--trials", "1", "--seeds", "1", "--set", "adapt-steps=3", "--out", "t")
    assert tune(engram, *words)[0] == 0
    (trial,) = read_trials(Path("t/fedavg"))
    scores = {}
    for size in (0.001, 0.003162, 0.01, 0.03162, 0.1, 0.3162, 1.0):
        own = ("--set", f"adapt-lr={size}", "--set", "adapt-steps=3")
        engram("run", "fedavg", *SETS, *own, "--out", f"r{size}")
        scores[size] = Run.open(Path(f"r{size}")).results["validation-accuracy-tuned"]
    assert trial.settings["adapt-lr"] == max(scores, key=scores.get)
    assert len(set(scores.values())) > 2
    assert tune(engram, *words[:-1], "f", "--set", "adapt-lr=0.5")[0] == 0
    assert read_trials(Path("f/fedavg"))[0].settings == {"eta": 0.1}


def test_ctrl_c_keeps_what_is_known_and_resume_goes_on(engram, monkeypatch):
    words = ("fedavg", "--trials", "8", "--seeds", "1")
    assert tune(engram, *words, "--out", "whole")[0] == 0
    train = Stacked.train

    def interrupted(self, step):
        train(self, step)
        known = Path("parts").exists() and len(read_trials(Path("parts/fedavg")))
        if known > 4 and step.number == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Stacked, "train", interrupted)
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


@pytest.mark.full
def test_a_comparison_of_tuned_methods_is_on_other_seeds(engram):
    words = ("compare", "fedavg", "--tuned", "--trials", "4", "--seeds", "2", *SETS)
    assert engram(*words, "--out", "c")[0] == 0
    assert json.loads(Path("c/tuning/tuning.json").read_text())["seeds"] == [2, 3]
    best = tomllib.loads(Path("c/tuning/fedavg/best.toml").read_text())["fedavg"]["eta"]
    for seed in (0, 1):
        settings = Run.open(Path(f"c/fedavg-seed{seed}")).config["settings"]
        assert (settings["seed"], settings["fedavg.eta"]) == (seed, best)
    before = Path("c/tuning/fedavg/trials.jsonl").read_bytes()
    assert engram("compare", "--resume", "c")[0] == 0
    assert Path("c/tuning/fedavg/trials.jsonl").read_bytes() == before


def test_if_all_trials_diverge_it_says_so_and_keeps_them(engram):
    words = ("per-fedavg", "--trials", "2", "--set", "eta=1e30", "--out", "t")
    status, _, err = tune(engram, *words)
    assert status == 1
    (last,) = (line for line in err.splitlines() if line.startswith("engram: "))
    start = "no trial has a score: trial 0: round 1 diverged: the models of clients "
    assert last.startswith(f"engram: {start}")
    assert {trial.state for trial in read_trials(Path("t/per-fedavg"))} == {"diverged"}
    assert engram("show", "t")[1].splitlines() == [
        last.replace("engram", "per-fedavg"),
        "recorded in t: tuning.json, per-fedavg/",
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
        patch.setattr(Stacked, "train", interrupted)
        status, _, err = engram(*words)
    said = [
        "tuning local (1 of 2): 0 of 32 rounds",
        "engram: interrupted; go on with: engram compare --resume c",
    ]
    assert (status, [line.partition(",")[0] for line in err.splitlines()]) == (130, said)
    assert engram("show", "c")[1].splitlines() == [
        "recorded in c: comparison.json, tuning/",
        "next: engram compare --resume c",
    ]


def test_bad_input_is_one_line_and_nothing_is_written(engram):
    for words, message in [
        ((), "METHOD must be some that train networks (`engram methods` lists them), got none"),
        (("nonsense",), "method must be one of"),
        (("molar",), "tune takes methods that train networks, got molar"),
        (("fedavg", "-s", "eta=0.1", "-s", "adapt-lr=0.1"), "fedavg has nothing to be tuned"),
        (("fedavg", "--search", "eta=1..0.1"), "with LOW < HIGH"),
        (("fedavg", "--search", "eta=0..1:log"), "with 0 < LOW < HIGH"),
        (("fedavg", "--search", "eta=5"), "search must be KEY=LOW..HIGH"),
        (("fedavg", "--search", "etta=1..2"), "etta is not a setting (did you mean eta?)"),
        *(
            (("fedavg", "--search", text), f"must have the same {text.partition('=')[0]}, to be")
            for text in (
                *("num-rounds=2,3", "seed=1..4", "device=cpu,cuda", "num-clients=9,20"),
                *("validation-fraction=0..0.5", "protocol=standard,few-shot", "metrics=auc,f1"),
                *("task=classification,regression", "unseen-clients=0..3", "data-dir=a,b"),
            )
        ),
        (("fedavg", "--search", "local-steps=0.5..4:log"), "must be a valid integer, got 0.5"),
        (("fedavg", "--search", "local-steps=0.2..0.4"), "must be a valid integer, got 0.2"),
        (("fedavg", "--search", "eta=0.1,abc"), "fedavg.eta must be a valid number, got 'abc'"),
        (("fedavg", "--search", "hidden=0..3"), "hidden is no number: give hidden=VALUE,VALUE"),
        (("apfl", "--search", "adaptive=0..1"), "adaptive is no number: give adaptive=VALUE"),
        (("fedavg", "--search", "model=mlp,foo"), "model must be one of mlp, cnn"),
        (("fedavg", "--search", "model=mlp,lstm"), "search model=lstm: "),
        (("fedavg", "-s", "eta=0.1", "--search", "eta=1..2"), "eta is fixed"),
        (("fedavg", "--search", "pfedme.eta=1..2"), "for a method that does not take part: pfedme"),
        (("fedavg", "-s", "protocol=few-shot"), "tuning needs validation rows"),
        (("fedavg", "-s", "validation-fraction=0"), "tuning needs validation rows"),
        (("fedavg", *FEW), "tuning needs at least 10 validation rows in all, got 2"),
        (
            ("fedavg", "-s", "privacy=central", "-s", "clip=1"),
            "privacy must be none for tuning, which chooses by scores of clients' rows",
        ),
        (("fedavg", "-s", "eta=-1"), "eta must be greater than 0"),
        (("fedavg", "--minutes", "0"), "minutes must suffice for one batch of trials, got 0"),
        (("--resume", "nowhere"), "no run 'nowhere'"),
        (("--resume", "nowhere", "--trials", "3"), "give --minutes, --processes or --ray"),
        (
            ("fedavg", "--ray", "local", "--processes", "2"),
            "ray and processes exclude each other: a cluster's cores are all used",
        ),
    ]:
        with entry(words):
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


def rows():
    """Rows of four clients, whose classes are signs of one of two inputs."""
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(40, 5)).astype(np.float32) for _ in range(4)]
    return [(x, (x[:, client % 2] > 0).astype(int)) for client, x in enumerate(inputs)]


def test_data_in_memory_are_tuned_on(tmp_path):
    data = rows()
    quick = {"num_rounds": 4, "local_steps": 2, "hidden": "6", "progress": False}
    quick["search"] = "eta=0.01..1:log"
    found = library.tune(data, methods="fedavg", trials=4, seeds=2, out=tmp_path / "t", **quick)
    table = found.table("fedavg")
    assert len(table) == 4
    assert table["eta"].between(0.01, 1).all()
    last = table[table["round"] == 4]
    assert found.best["fedavg"]["eta"] == last.loc[last["score"].idxmax(), "eta"]
    first, *lines = str(found).splitlines()
    assert first == f"Tuned({str(tmp_path / 't')!r}: fedavg)"
    assert any(f"{found.best['fedavg']['eta']}" in line for line in lines)
    for look in (found.table, found.plot):
        with pytest.raises(Refused, match="method must be one of fedavg, got 'ditto'"):
            look("ditto")
    assert found.plot("fedavg").axes[0].get_xscale() == "log"
    with pytest.raises(Refused, match="tune takes methods that train networks, got molar"):
        library.tune(data, methods=["molar"], **quick)


class Small(torch.nn.Module):
    """A network that no command line knows."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(x)


def test_a_comparison_is_tuned_first_on_data_and_networks_in_memory(tmp_path, capsys):
    quick = {"model": Small, "num_rounds": 4, "local_steps": 2, "out": tmp_path / "c"}
    own = {"ditto": {"lambda_": 0.5}}
    found = library.compare(rows(), methods=own, tuned=(4, 1), seeds=2, **quick)
    plan = json.loads((tmp_path / "c" / "tuning" / "tuning.json").read_text())
    assert (plan["trials"], plan["seeds"]) == (4, [2])
    for method, runs in found.runs.items():
        assert [run.experiment.seed for run in runs] == [0, 1]
        trials = read_trials(tmp_path / "c" / "tuning" / method)
        best = max((t for t in trials if t.round == 4), key=lambda trial: trial.value)
        for run in runs:
            assert run.experiment.own.eta == best.settings.get("eta", 0.1)
            assert run.experiment.adapt_lr == best.settings["adapt-lr"]
    assert {run.experiment.own.lambda_ for run in found.runs["ditto"]} == {0.5}
    told = [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()]
    checks = [
        f"checking settings: {n} of {of} {kind}"
        for kind, of in (("runs", 4), ("searches", 3))
        for n in (0, of)
    ]
    assert told[:5] == [*checks, "tuning fedavg (1 of 3): 0 of 4 rounds"]


def test_no_command_is_named_that_lacks_data_in_memory(engram, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for _ in range(2)]
    quick = {"num_rounds": 2, "hidden": "4", "clients_per_round": 2, "progress": False}
    library.simulate(data, method="fedavg", out="run", **quick)
    library.compare(data, methods="fedavg", seeds=1, out="both", **quick)
    for name in ("run", "both"):
        assert engram("show", name)[1].splitlines()[-1] == f"next: engram report {name}"
        Path(name if name == "run" else "both/fedavg-seed0", "results.json").unlink()
        assert "next:" not in engram("show", name)[1]
    again = {"methods": "fedavg", "resume": "both", **quick}
    for other in ({"seeds": 2}, {"seeds": 1, "tuned": 2}):
        with pytest.raises(Refused, match="both goes on by the call that began it"):
            library.compare(data, **again | other)
    before = library.load_comparison("both", round="last").runs
    assert [*before] == ["local"]  # the other has no results
    table = library.compare(data, seeds=1, **again).table
    library.compare(data, methods="fedavg", seeds=1, out="whole", **quick)
    assert table["accuracy"].equals(library.load_comparison("whole").table["accuracy"])
    train = Stacked.train

    def interrupted(self, step):
        train(self, step)
        if Path("t").exists() and read_trials(Path("t/fedavg")):
            raise KeyboardInterrupt

    monkeypatch.setattr(Stacked, "train", interrupted)
    search = {"methods": "fedavg", "trials": 8, "seeds": 1, "out": "t", "progress": True}
    with pytest.raises(KeyboardInterrupt):
        library.tune(data, **quick | search, validation_fraction=0.5)
    assert "interrupted; it cannot go on: its data were given in memory" in capsys.readouterr().err
    assert "next:" not in engram("show", "t")[1]
    before = Path("t/fedavg/trials.jsonl").read_bytes()
    for command in ("tune --resume t", "run --resume run"):
        status, _, err = engram(*command.split())
        assert status == 2
        assert re.fullmatch(r"engram: the rows of memory:\w+ were given in memory: [^\n]*\n", err)
    assert Path("t/fedavg/trials.jsonl").read_bytes() == before
