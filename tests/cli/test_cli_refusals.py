"""What the engram command refuses, in one line, and how it says that something failed."""

import re
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from engram.runs.run import Run
from engram.wire.checksums import Journal
from tests.cli.words import SETS, let
from tests.samples import entry
from tests.support import write_npz

FEW = ("protocol=few-shot", "adapt-shots=30")  # of a client's 30 test rows or 16


def test_bad_input_is_one_line_and_nothing_is_written(engram):
    write_npz(Path("wrong.npz"), a=np.ones(3))
    write_npz(Path("rows.npz"), x=np.ones((600, 3)), y=np.tile([0, 1], 300))
    Path("full").mkdir()
    Path("full/thesis.tex").touch()
    before = sorted(Path().rglob("*"))
    for args, message in [
        (
            let("num-round=3", "bta=1", "eta=x"),
            r"num-round is not a setting \(did you mean num-rounds\?\); bta is not a setting "
            r"\(did you mean beta\?\); local-moml.eta must be a valid number.*got 'x'",
        ),
        (
            let("num-clients=900", "clients-per-round=901", *FEW),
            "clients-per-round must be at most num-clients = 900, got 901; num-clients must be at "
            "most the number of test rows, 719, got 900; client 0: it has 30 test rows, not more "
            "than adapt-shots = 30, .*",
        ),
        (
            let("eta=-1", "clients-per-round=30", *FEW),
            "eta must be greater than 0, got '-1'; clients-per-round must be at most num-clients = "
            "20, got 30; client 0: it has 30 test rows, not more than adapt-shots = 30, .*",
        ),
        (
            let("num-clients=0", "dataset=nothing"),
            "num-clients must be .* 1, got '0'; dataset must be one of .*, got 'nothing'",
        ),
        # Of the default partition, a client would have too few rows.
        (let("partition=x", *FEW), r"partition must be [^;]*, got 'x'(?=\n)"),
        (let("etta=1", *FEW), r"etta is not a setting \(did you mean eta\?\)(?=\n)"),
        # Of width w, by one channel: 9 w + 2 * 9 w w weights, 6 w of norms, and the dense layer.
        (
            let("model=resnet", "hidden=1000000"),
            "a model of 18000025000010 parameters needs 2.01e.05 GiB, and .* take a smaller",
        ),
        (["--set", "beta"], "--set must be KEY=VALUE, got 'beta'"),
        (["--set", "=5"], "--set must be KEY=VALUE, got '=5'"),
        (let("dataset=npz:none.npz"), r"none\.npz cannot be read: No such file"),
        (let("dataset=npz:wrong.npz"), r"wrong\.npz must hold either x and y .* it holds a"),
        (let("unseen-clients=20"), "unseen-clients must be below num-clients = 20, got 20"),
        (let("patience=2", "validation-fraction=0"), "patience must be 0 without validation rows"),
        (let("device=cuda:9"), "device cuda:9 is not there"),
        (let("resume=x"), "resume is not a setting of this command: use --resume RUN"),
        (let("model=cnn", "dataset=npz:rows.npz", "partition=iid"), "input of a cnn must be"),
        (let("cpu-threads=100000"), "cpu-threads must be less than or equal to 256"),
        (["--engine", "warp"], "--engine must be vectorized or sequential, got 'warp'"),
        (["--resume", "none"], "no run 'none'"),
        (["--out", "full"], "full is there already"),
        (["--out", "x" * 5000], "File name too long"),
        (["--config", "x" * 5000], "cannot be read: File name too long"),
        (let("dataset=" + "x" * 100_000), "dataset must be one of digits, .*, got 'xxx"),
        (let("rows-per-class=1000000"), "partition halves needs .*: lower rows-per-class"),
    ]:
        with entry(args):
            for command in ("run", "compare"):
                status, out, err = engram(command, *args)
                assert status == 2
                assert out == ""
                assert re.fullmatch(rf"engram: .*{message}.*\n", err)
                assert len(err) < 2100
                assert sorted(Path().rglob("*")) == before


def test_what_commands_refuse(engram):
    Path("full").mkdir()
    Path("file").touch()
    for args, message in [
        (
            ["compare", "fedavg", *let("pfedme.eta=1", "nu=3", "beta=2", "seed=-1")],
            "pfedme.eta is for a method that does not take part: pfedme; nu is for a method that "
            "does not take part: meta-ban; beta is for .*; seed must be .*, got '-1'(?=\n)",
        ),
        (
            ["compare", "pfedme", "ditto", *let("mu=3", "pfedme.alpha=-1", "ditto.lambda=-1")],
            "mu is for a method that does not take part: fedprox, gpfl, moon; "
            "pfedme.alpha must be [^;]*; ditto.lambda must be [^;]*, got '-1'(?=\n)",
        ),
        (["compare", "fedavg", *let("fedavg.seed=1")], "seed is not a setting of this command"),
        (["compare", *let("method=apfl")], "method apfl, of --config or --set, does not take part"),
        (["run", "fedavg", *let("method=apfl")], "METHOD must be apfl, as --config or --set says"),
        (["compare", "--seeds", str(10**12)], "--seeds must be less than or equal to 1000, got"),
        (
            ["reproduce", "one-shot", "cnn", "--seeds", str(10**12), "--iterations", "0"],
            "method must be one of .*, got 'cnn'; iterations must be at least 1, got 0; seeds must "
            "be at most 1000, got 1000000000000",
        ),
        (
            ["reproduce", "molar-table", "t.txt", "--task", "y", "--target", "y"],
            r"TABLE must be a \.csv, \.xlsx or \.npz file, got t\.txt; --task and --target must",
        ),
        (["compare", "--resume", "full", "--seeds", "2"], "give nothing else"),
        (["run", "--resume", "full", "--out", "other"], "exclude each other"),
        (["run", "--resume", "full"], "full is not the folder of a run"),
        (
            ["data", *let("method=meta-ban", "dataset=digits", "num-clients=10")],
            "engram data shows rows that clients hold: one of meta-ban has none before its turns",
        ),
        (["run", "meta-ban"], "num-clients must be the number of clients in digits, 10, got 20"),
        (
            ["run", "molar"],
            "dataset must be csv:PATH, xlsx:PATH, npz:PATH, or simulated: .*, got 'digits'",
        ),
        (
            ["run", "molar-bandit"],
            "num-rounds must be at most 17 .*; dataset must be .*sparse-linear, .*, got 'digits'",
        ),
        (
            ["run", "molar", *let("family=x", "dataset=sparse-logistic")],
            "molar.family must be [^;]*, got 'x'(?=\n)",
        ),
        (
            ["compare", "fedavg", "ditto", *let("hidden=a; b; b; c")],
            "hidden must be [^;]*, got 'a; b; b; c'(?=\n)",
        ),
        (["data", "--out", "p.foo"], r"--out must be the name of a \.png file, got p\.foo"),
        (["compare", "--out", "file/x"], "file/x cannot be made"),
        (["data", "--out", "file/x.png"], "file cannot be made"),
        (["run", "--out", "file/x"], "file/x cannot be made"),
        (["run", *let("method=pfedm", "beta=2")], r"did you mean pfedme or "),
        (
            ["methods", "pfedmy"],
            r"METHOD must be one of .* \(did you mean pfedme or .*\?\), got 'pf",
        ),
        *(
            (["run", "fedavg", word, "1"], rf"{word}'\. Settings are .* --set {key}=VALUE\?")
            for word, key in (
                *(("--lr", "eta"), ("--learning_rate", "eta")),
                *(("--rounds", "num-rounds"), ("--batch_size", "batch-size")),
            )
        ),
        (["tune", "fedavg", "--lr", "1"], "did you mean --set eta=VALUE"),
        (["show", "full", "--lr"], "No such option '--lr'"),
        (["shwo"], r"No such command 'shwo'\. Did you mean '?show'?\?(?=\n)"),
        (["reproduce", "sinewav"], r"No such command 'sinewav'. Did you mean 'sinewave'\?(?=\n)"),
        (["show", "x" * 5000], "x: File name too long"),
        (["x" * 100_000], "No such command 'xxx"),
    ]:
        with entry(args):
            status, out, err = engram(*args)
            assert (status, out) == (2, "")
            assert re.fullmatch(rf"engram: .*{message}.*\n", err)
            assert sorted(path.name for path in Path().rglob("*")) == ["file", "full"]


def test_a_damaged_run_is_named(engram):
    engram("run", *SETS, "--set", "num-rounds=2", "--set", "memory=carry", "--out", "run")
    more = ("run", "--resume", "run", "--set", "num-rounds=4")
    whole = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for name, commands in (
        ("config.json", [more, ("show", "run")]),
        ("results.json", [("show", "run")]),
        ("checkpoints/round-*/model.safetensors", [more]),
        ("checkpoints/round-*/memory.safetensors", [more]),
    ):
        for path, contents in whole.items():
            path.write_bytes(contents)
        for path in Path("run").glob(name):
            path.write_bytes(b"{")
        for command in commands:
            status, out, err = engram(*command)
            assert status in (1, 2)
            assert out == ""
            assert re.fullmatch(r"(a round: .*\n)?engram: .*run/.* is damaged.*\n", err), err


def test_a_damaged_comparison_is_named(engram):
    engram("compare", "fedavg", "--seeds", "1", *SETS, "--out", "c")
    for contents in ("{", "{}", "[]"):
        Path("c/comparison.json").write_text(contents)
        for command in (("show", "c"), ("compare", "--resume", "c")):
            status, _, err = engram(*command)
            assert status == 2
            assert re.fullmatch(r"engram: c/comparison.json is damaged: .*\n", err)


def test_a_full_disk_is_one_line(engram, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device", "run/metrics.jsonl")

    monkeypatch.setattr(Journal, "append", full)
    status, _, err = engram("run", *SETS, "--out", "run")
    costs, *told = err.splitlines()
    assert costs.startswith("a round: ")
    assert (status, told) == (1, ["engram: run/metrics.jsonl: No space left on device"])


def test_a_diverging_run_names_round_and_clients(engram):
    status, _, err = engram("run", *SETS, "--set", "eta=1e30", "--out", "d")
    assert status == 1
    last = err.strip().splitlines()[-1]
    expected = r"engram: round \d diverged: the models of clients \[.*\] became .*round 0, is in d"
    assert re.match(expected, last)
    assert Run.open(Path("d")).load_checkpoint().server_round == 0


def test_a_diverging_run_keeps_no_other_of_a_comparison_from_running(engram):
    own = ["--set", "num-rounds=2", "--set", "ditto.eta=1e30"]
    status, out, err = engram("compare", "ditto", "apfl", "--seeds", "1", *SETS, *own, "--out", "c")
    assert status == 1
    last = err.strip().splitlines()[-1]
    assert re.match(r"engram: 1 of 4 runs stopped: ditto with seed 0: round 1 diverged: .*", last)
    assert Run.open(Path("c/apfl-seed0")).results is not None
    assert "\n apfl " in out
    assert "\n ditto... " in out
    assert "c/ditto-seed0: not finished, 0 of 2 rounds" in err


def test_commands_that_a_supervisor_starts_again_pause_after_a_refusal(engram, monkeypatch):
    seconds = []
    monkeypatch.setattr("engram.cli.cli.time", SimpleNamespace(sleep=seconds.append))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for command, pause, slept in [
        (["node", "none"], "300", [300]),
        (["superlink", "--nonsense"], "300", [300]),
        (["node", "none"], "", []),
        (["register", "none"], "300", []),
    ]:
        seconds.clear()
        monkeypatch.setenv("ENGRAM_REFUSAL_PAUSE", pause)
        try:
            status, _, err = engram(*command)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        with entry(command, pause):
            assert (status, seconds) == (2, slept)
            assert ("ending in 300 s" in err) == bool(slept)


def test_a_folder_of_several_runs_is_said_to_be_one(engram, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in ("1", "0"):
        Path(f"both/fedavg-seed{seed}").mkdir(parents=True)
        Path(f"both/fedavg-seed{seed}/config.json").touch()
    for command in (("export", "both", "--common"), ("adapt", "both", "--data", "rows.csv")):
        status, _, err = engram(*command)
        expected = "engram: both is not the folder of a run, but of several, as of a comparison: "
        assert (status, err) == (2, f"{expected}name one of them, such as both/fedavg-seed0\n")
