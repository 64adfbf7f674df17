"""The engram command, as a user types it."""

import io
import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from rich.console import Console

from federation.experiment import default_config
from federation.fingerprint import source_root
from federation.flower import flatten_dict
from federation.methods import METHODS
from server.record import RunRecord
from simulations import terminal
from tests.support import write_npz, write_plug_in

QUICK = "num-rounds=4 clients-per-round=4 local-steps=2 hidden=8 eval-every=2 checkpoint-every=2"
SETS = [word for pair in QUICK.split() for word in ("--set", pair)]
PRESETS = source_root() / "simulations" / "presets"


def test_run_records_what_it_shows(engram):
    status, out, _ = engram("run", *SETS, "--out", "mine", "--json")
    assert status == 0
    found = json.loads(out.splitlines()[-1])
    assert found["run"] == "mine"
    (row,) = found["methods"]
    results = RunRecord.open(Path("mine")).results
    assert row["accuracy"] == results["accuracy"]
    for key in ("", "-std", "-p10", "-worst"):
        assert f"{100 * row[f'accuracy-served{key}']:.1f}" in out
    for key in ("accuracy-before", "selected-accuracy"):
        assert f"{100 * row[key]:.1f}" in out
    assert f"{row['ms-per-round']:.1f}" in out
    assert row["client-ms"] == pytest.approx(row["ms-per-round"] / 4)  # they train in one process
    model = RunRecord.open(Path("mine")).load_checkpoint().model
    assert row["client-bytes"] == 2 * sum(leaf.nbytes for leaf in model.values())
    assert f" {row['client-bytes'] / 1024:.0f} " in out
    files = {path.name for path in Path("mine").iterdir()}
    wanted = {"config.json", "metrics.jsonl", "results.json", "accuracy.png", "clients.png"}
    assert wanted <= files


def test_run_names_its_own_folder(engram):
    assert engram("run", *SETS)[0] == 0
    assert engram("run", *SETS)[0] == 0
    names = [path.name for path in Path("runs").iterdir()]
    assert len(names) == 2
    assert all(re.fullmatch(r"local-moml-digits-\d{8}-\d{6}(-\d)?", name) for name in names)


def test_sequential_runs_alike(engram):
    for engine in ("vectorized", "sequential"):
        assert engram("run", *SETS, "--engine", engine, "--out", engine)[0] == 0
    one, other = (
        RunRecord.open(Path(name)).load_checkpoint().model for name in ("vectorized", "sequential")
    )
    assert all((one[name] - other[name]).abs().max() < 1e-5 for name in one)


def test_config_files_and_overrides_in_their_order(engram):
    Path("mine.toml").write_text('method = "fedavg"\neta = 0.3\n')
    status, *_ = engram("run", *SETS, "--config", "mine.toml", "--set", "eta=0.05", "--out", "a")
    assert status == 0
    settings = RunRecord.open(Path("a")).config["settings"]
    assert (settings["method"], settings["fedavg.eta"]) == ("fedavg", 0.05)


def test_without_a_terminal_each_evaluation_is_a_line(engram):
    status, out, err = engram("run", *SETS, "--out", "mine", "--json")
    assert status == 0
    rows = [row for row in RunRecord.open(Path("mine")).rows() if "accuracy" in row]
    assert [row["round"] for row in rows] == [0, 2, 4]
    lines = [
        rf"local-moml seed 0: {row['round']} of 4 rounds, \d+\.\d s, "
        rf"accuracy {100 * row['accuracy-served']:.1f} % \(common model: .* %\)"
        for row in rows
    ]
    assert re.fullmatch("".join(f"{line}\n" for line in lines), err)
    assert json.loads(out.splitlines()[-1])["run"] == "mine"
    assert " of 4 rounds" not in out


def test_without_a_terminal_tables_are_a_line_as_often(engram):
    sets = bad("method=meta-ban", "dataset=linear-groups", "num-rounds=5", "eval-every=2")
    _, _, err = engram("run", *sets, "--out", "t")
    assert re.findall(r"(\d) of 5 rounds.*regret", err) == ["2", "4", "5"]


def test_a_terminal_has_a_bar_instead(engram, monkeypatch):
    screen = io.StringIO()
    terminal_of_ours = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(terminal, "err", terminal_of_ours)
    assert engram("run", *SETS, "--out", "mine")[0] == 0
    assert "4/4 rounds accuracy" in re.sub(r"\x1b\[[\d;?]*\w", "", screen.getvalue())
    assert " of 4 rounds" not in screen.getvalue()


def test_compare_names_each_run_in_its_lines(engram):
    _, _, err = engram("compare", "fedavg", "pfedme", "--seeds", "1", *SETS, "--out", "c")
    told = re.findall(r"^(\S+) seed 0: (\d) of 4 rounds", err, re.MULTILINE)
    assert told == [(name, done) for name in ("local", "fedavg", "pfedme") for done in "024"]


def test_resume_goes_on(engram):
    engram("run", *SETS, "--out", "whole")
    engram("run", *SETS, "--set", "num-rounds=2", "--out", "parts")
    status, out, _ = engram("run", "--resume", "parts", "--set", "num-rounds=4", "--json")
    assert status == 0
    one, other = (
        [{k: v for k, v in row.items() if k != "ms"} for row in RunRecord.open(Path(name)).rows()]
        for name in ("whole", "parts")
    )
    assert one == other
    assert json.loads(out.splitlines()[-1])["methods"][0]["rounds"] == 4


def test_resume_keeps_the_engine(engram):
    engram("run", *SETS, "--set", "num-rounds=2", "--engine", "sequential", "--out", "parts")
    assert engram("run", "--resume", "parts", "--set", "num-rounds=4")[0] == 0
    assert RunRecord.open(Path("parts")).config["engine"] == "sequential"


def test_resume_by_another_source_is_said(engram, monkeypatch):
    engram("run", *SETS, "--set", "num-rounds=2", "--out", "parts")
    monkeypatch.setattr("server.record.fingerprint", lambda: "another")
    _, _, err = engram("run", "--resume", "parts", "--set", "num-rounds=4")
    assert "goes on with another, whose numbers may differ" in err
    assert RunRecord.open(Path("parts")).config["sources"][1:] == ["another"]


def test_a_run_of_an_unknown_method_asks_for_its_plug_in(engram, plug_ins, monkeypatch):
    write_plug_in(Path("one.py"), "own")
    assert engram("--plugin", "one", "run", "own", *SETS, "--out", "mine")[0] == 0
    (source,) = RunRecord.open(Path("mine")).config["sources"]
    assert re.fullmatch("[0-9a-f]{16} with plug-in one [0-9a-f]{16}", source)
    del METHODS["own"], sys.modules["one"]
    monkeypatch.setenv("ENGRAM_PLUGINS", "")
    for words in (["show", "mine"], ["run", "--resume", "mine"]):
        status, _, err = engram(*words)
        assert status == 2
        assert re.fullmatch("engram: mine is a run of 'own', .* engram --plugin NAME\n", err)
    assert engram("run", "own")[2].startswith("engram: method must be one of local-moml, ")
    assert engram("status", "mine")[0] == 0
    Path("pyproject.toml").write_text('[tool.engram]\nplugin = "one"\n')
    assert engram("run", "--resume", "mine", "--set", "num-rounds=6")[0] == 0
    assert RunRecord.open(Path("mine")).config["sources"] == [source]


def test_the_app_for_flower_has_the_settings_of_all_methods(engram, plug_ins):
    write_plug_in(Path("one.py"), "own")
    status, out, _ = engram("--plugin", "one", "app", "apps/mine")
    assert (status, out) == (0, f"ENGRAM_PLUGINS={Path.cwd()}/one flwr run apps/mine\n")
    config = tomllib.loads(Path("apps/mine/pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert flatten_dict(config["config"]) == default_config()
    assert config["config"]["own"]["eta"] == 0.1
    assert (
        engram("app", "apps/mine")[2] == "engram: apps/mine is there already: name a new folder\n"
    )


def test_compare_runs_algorithms_side_by_side(engram):
    status, out, _ = engram(
        *("compare", "fedavg", "pfedme", "--seeds", "2", *SETS, "--out", "c", "--json"),
        *("--set", "pfedme.lambda=20"),
    )
    assert status == 0
    rows = json.loads(out.splitlines()[-1])["methods"]
    labels = ["local", "fedavg", "fedavg + fine-tuning", "pfedme"]  # local is a reference
    assert [row["method"] for row in rows] == labels
    each = [RunRecord.open(Path(f"c/fedavg-seed{seed}")).results["accuracy"] for seed in (0, 1)]
    assert rows[1]["accuracy"] == pytest.approx(np.mean(each))
    assert rows[2]["accuracy-seed-std"] == pytest.approx(np.std(each, ddof=1))
    assert rows[1]["accuracy-own"] is None
    assert rows[3]["accuracy-own"] is not None
    settings = [
        RunRecord.open(Path(f"c/{name}-seed1")).config["settings"] for name in ("fedavg", "pfedme")
    ]
    assert [s.get("pfedme.lambda") for s in settings] == [None, 20.0]
    assert {"comparison.json", "results.json", "gains.png", "accuracy.png", "clients.png"} <= {
        path.name for path in Path("c").iterdir()
    }
    shown = engram("show", "c", "--json")
    assert json.loads(shown[1].splitlines()[-1])["methods"] == rows


def test_compare_goes_on_where_it_was_interrupted(engram, monkeypatch):
    from simulations import engine

    args = ("compare", "fedavg", "per-fedavg", "--seeds", "1", *SETS)
    assert engram(*args, "--out", "whole")[0] == 0
    run, calls = engine.run, []

    def interrupted(grid, experiment, folder, **options):
        calls.append(folder)
        report = options["on_round"]

        def stop(row):
            report(row)
            if len(calls) == 3 and row["round"] == 3:
                raise KeyboardInterrupt

        return run(grid, experiment, folder, **(options | {"on_round": stop}))

    with monkeypatch.context() as patch:
        patch.setattr(engine, "run", interrupted)
        status, _, err = engram(*args, "--out", "parts")
    assert status == 130
    assert "interrupted; go on with: engram compare --resume parts" in err
    shown = engram("show", "parts")
    assert "per-fedavg-seed0: not finished, 3 of 4 rounds" in shown[2]
    assert re.search(r" fedavg \+ fine-tuning .* per-fedavg\.\.\. ", shown[1], re.DOTALL)
    assert engram("compare", "--resume", "parts")[0] == 0
    rows = [json.loads((Path(name) / "results.json").read_text()) for name in ("whole", "parts")]
    for row in (*rows[0], *rows[1]):
        del row["ms-per-round"], row["client-ms"]
    assert rows[0] == rows[1]


def test_data_shows_who_holds_what(engram):
    status, out, _ = engram("data", "--out", "held.png", "--json")
    assert status == 0
    assert "validation" in out
    found = json.loads(out.splitlines()[-1])
    for part, rows in (("training", 32), ("validation", 8), ("test", 30)):
        assert np.array(found[part]).shape == (20, 10)
        assert sum(found[part][0]) == rows
    assert Path("held.png").read_bytes().startswith(b"\x89PNG")


NAMED = ["park", "[red]elm", "$oak"]


@pytest.fixture
def hospitals():
    """A table of three hospitals, whose names are no markup and no mathematics."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(90, 3)) / 2
    y = (x.sum(axis=1) > 0.75).astype(int)
    task = np.repeat([2, 0, 1], 30)
    write_npz(Path("h.npz"), x=x, y=y, task=task, task_names=np.array(NAMED))
    pd.DataFrame(x).assign(y=y, task=np.array(NAMED)[task]).to_csv("h.csv", index=False)
    return bad("num-clients=3", "dataset=npz:h.npz")


def test_clients_keep_the_names_that_their_data_give_them(engram, hospitals):
    natural = [*hospitals, *bad("partition=natural", "clients-per-round=3", "num-rounds=2")]
    assert engram("run", "fedavg", *natural, "--out", "f")[0] == 0
    record = RunRecord.open(Path("f"))
    assert record.names == dict(enumerate(NAMED))
    assert record.results["clients"]["names"] == NAMED
    shown = engram("status", "f")[1]
    assert all(name in shown for name in NAMED)
    status, _, err = engram("run", "fedavg", *natural, "--set", "eta=1e30")
    assert status == 1
    assert "the models of clients [park, [red]elm, $oak] became non-finite" in err
    _, out, _ = engram("data", *natural, "--out", "f.png", "--json")
    assert all(name in out for name in NAMED)
    assert json.loads(out.splitlines()[-1])["names"] == NAMED


def test_tables_and_plots_call_sites_by_their_names(engram, hospitals, monkeypatch):
    labels = []
    draw = Axes.set_xticks
    monkeypatch.setattr(
        Axes, "set_xticks", lambda *args, **how: (labels.append(args[2:]), draw(*args, **how))[1]
    )
    assert engram("run", "molar", *hospitals, "--out", "m")[0] == 0
    assert sorted(labels[0][0]) == sorted(NAMED)
    assert set(RunRecord.open(Path("m")).results["clients"]["names"]) == set(NAMED)
    _, out, _ = engram("run", "molar-bandit", *hospitals, "--set", "num-rounds=3", "--out", "b")
    assert all(re.search(rf"^ *{re.escape(name)} +\d ", out, re.MULTILINE) for name in NAMED)
    csv = [*hospitals, *bad("dataset=csv:h.csv", "num-rounds=3")]
    _, out, _ = engram("run", "meta-ban", *csv, "--out", "t")
    assert all(re.search(rf"^ *{re.escape(name)} +\d ", out, re.MULTILINE) for name in NAMED)


def test_a_site_that_is_left_out_is_named(engram, hospitals):
    table = pd.read_csv("h.csv")
    table.loc[0, "1"] = np.inf  # a row of $oak
    table.to_csv("h.csv", index=False)
    words = [*hospitals, *bad("dataset=csv:h.csv")]
    _, _, err = engram("run", "molar", *words, "--out", "m")
    assert re.search(r"client \$oak is left out: ", err)
    assert re.search(r"client \$oak left out: ", err)


@pytest.mark.parametrize("name", ["cross_device", "cross_silo"])
def test_presets_run(engram, name):
    status, *_ = engram(
        *("run", "--config", PRESETS / f"{name}.toml", "--out", name),
        *("--set", "num-rounds=2", "--set", "local-steps=1"),
    )
    assert status == 0
    results = RunRecord.open(Path(name)).results
    assert results["own-clients"] == (10 if name == "cross_silo" else 0)


def test_the_demo_compares_eight_methods_with_settings_of_their_own(engram):
    makefile = (source_root() / "Makefile").read_text()
    methods = re.search(r"^DEMO := (.*)$", makefile, re.MULTILINE)[1].split()
    status, out, _ = engram(
        *("compare", *methods, "--config", PRESETS / "demo.toml", "--seeds", "1", "--out", "demo"),
        *("--set", "num-rounds=2", "--set", "local-steps=2"),
    )
    assert status == 0
    assert "recorded in demo: gains.png" in out
    given = tomllib.loads((PRESETS / "demo.toml").read_text())
    assert given.pop("num-rounds") == 80
    assert list(given) == methods
    for name, own in given.items():
        settings = RunRecord.open(Path(f"demo/{name}-seed0")).config["settings"]
        for key, value in own.items():
            assert settings.get(f"{name}.{key}", settings.get(key)) == value


# --- Bad input -------------------------------------------------------------------------------


def bad(*sets):
    return [word for pair in sets for word in ("--set", pair)]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            bad("num-round=3", "bta=1", "eta=x"),
            r"num-round is not a setting \(did you mean num-rounds\?\); bta is not a setting "
            r"\(did you mean beta\?\); local-moml.eta must be a valid number.*got 'x'",
        ),
        (
            bad("num-clients=900", "clients-per-round=901", "batch-size=99"),
            "clients-per-round must be at most num-clients = 900, got 901; num-clients must be at "
            "most the number of test rows, 719, got 900; client 0 has 32 training rows beside 8 "
            "held out for validation, fewer than batch-size = 99: .*",
        ),
        (bad("clients-per-round=21"), "clients-per-round must be at most num-clients = 20, got 21"),
        (bad("beta=0"), "beta must be greater than 0"),
        (["--set", "beta"], "--set must be KEY=VALUE, got 'beta'"),
        (bad("dataset=npz:none.npz"), r"none\.npz cannot be read: No such file"),
        (bad("dataset=npz:wrong.npz"), r"wrong\.npz must hold either x and y .* it holds a"),
        (bad("batch-size=30"), "client 10 has 16 training rows beside 4 held out for validation, "),
        (
            bad("adapt-shots=15", "protocol=few-shot"),
            "client 10 has 15 test rows, not more than adapt-shots = 15",
        ),
        (bad("unseen-clients=20"), "unseen-clients must be below num-clients = 20, got 20"),
        (bad("patience=2", "validation-fraction=0"), "patience must be 0 without validation rows"),
        (bad("dataset=imagenet"), "dataset must be one of digits, mnist"),
        (bad("device=cuda:9"), "device cuda:9 is not there"),
        (["--set", "=5"], "--set must be KEY=VALUE, got '=5'"),
        (bad("resume=x"), "resume is not a setting of this command: use --resume RUN"),
        (bad("cpu-threads=100000"), "cpu-threads must be less than or equal to 256"),
        (bad("model=cnn", "dataset=npz:rows.npz", "partition=iid"), "input of a cnn must be"),
        (["--config", "none.toml"], r"none\.toml cannot be read"),
        (["--engine", "warp"], "--engine must be vectorized or sequential, got 'warp'"),
        (["--resume", "none"], "no run 'none'"),
        (["--out", "full"], "full is there already"),
        (["--out", "x" * 5000], "File name too long"),
        (["--config", "x" * 5000], "cannot be read: File name too long"),
        (bad("dataset=npz:" + "x" * 5000, "partition=iid"), "cannot be read: File name too long"),
        (bad("dataset=" + "x" * 100_000), "dataset must be one of digits, .*, got 'xxx"),
        (bad("hidden=1048576,1048576", "partition=iid"), "a model of .* parameters needs .* GiB"),
        (bad("num-clients=1000000", "partition=iid"), "num-clients must be at most the number of"),
        (bad("rows-per-class=4000000000"), "partition halves needs .*: lower rows-per-class"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(engram, args, message):
    write_npz(Path("wrong.npz"), a=np.ones(3))
    write_npz(Path("rows.npz"), x=np.ones((600, 3)), y=np.tile([0, 1], 300))
    Path("full").mkdir()
    Path("full/thesis.tex").touch()
    before = sorted(Path().rglob("*"))
    for command in ("run", "compare"):
        status, out, err = engram(command, *args)
        assert status == 2
        assert out == ""
        assert re.fullmatch(rf"engram: .*{message}.*\n", err)
        assert len(err) < 2100
        assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["compare", "fedavg", *bad("pfedme.eta=1")], "pfedme.eta is for a method that does"),
        (["compare", "fedavg", *bad("fedavg.seed=1")], "seed is not a setting of this command"),
        (["compare", *bad("method=fedavg")], "method is not a setting of this command"),
        (["compare", "nonsense"], "method must be one of"),
        (["compare", "--seeds", "0"], "Invalid value for '--seeds'"),
        (["compare", "--seeds", str(10**12)], "Invalid value for '--seeds'"),
        (["reproduce", "one-shot", "--seeds", str(10**12)], "Invalid value for '--seeds'"),
        (["compare", "--resume", "full", "--seeds", "2"], "give nothing else"),
        (["run", "--resume", "full", "--out", "other"], "exclude each other"),
        (["run", "--resume", "full"], "full is not the folder of a run"),
        (
            ["data", *bad("method=meta-ban", "dataset=digits", "num-clients=10")],
            "engram data shows rows that clients hold: one of meta-ban has none before its turns",
        ),
        (
            ["run", *bad("method=meta-ban")],
            "num-clients must be the number of users, 10, in digits, got 20",
        ),
        (["data", "--out", "p.foo"], r"--out must be the name of a \.png file, got p\.foo"),
        (["show", "full"], "full is not the folder of a run"),
        (["compare", "--out", "file/x"], "file/x cannot be made"),
        (["data", "--out", "file/x.png"], "file cannot be made"),
        (["run", "--out", "file/x"], "file/x cannot be made"),
        (["run", *bad("method=pfedm", "beta=2")], r"did you mean pfedme\?"),
        (["shwo"], "No such command 'shwo'"),
        (["show", "x" * 5000], "x: File name too long"),
        (["status", "x" * 5000], "x/config.json: File name too long"),
        (["x" * 100_000], "No such command 'xxx"),
    ],
)
def test_what_commands_refuse(engram, args, message):
    Path("full").mkdir()
    Path("file").touch()
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
            assert re.fullmatch(r"engram: .*run/.* is damaged.*\n", err), err


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

    monkeypatch.setattr(RunRecord, "append", full)
    status, _, err = engram("run", *SETS, "--out", "run")
    assert (status, err) == (1, "engram: run/metrics.jsonl: No space left on device\n")


def test_a_diverging_run_names_round_and_clients(engram):
    status, _, err = engram("run", *SETS, "--set", "eta=1e30", "--out", "d")
    assert status == 1
    last = err.strip().splitlines()[-1]
    expected = r"engram: round \d diverged: the models of clients \[.*\] became .*round 0, is in d"
    assert re.match(expected, last)
    assert RunRecord.open(Path("d")).load_checkpoint().server_round == 0


@pytest.mark.parametrize(
    ("command", "pause", "slept"),
    [
        (["node", "none"], "300", [300]),
        (["superlink", "none"], "300", [300]),
        (["node", "--nonsense"], "300", [300]),
        (["node", "none"], None, []),
        (["run", "--set", "beta=0"], "300", []),
        (["register", "none"], "300", []),
    ],
    ids=str,
)
def test_what_a_supervisor_starts_again_pauses_after_a_refusal(
    engram, command, pause, slept, monkeypatch
):
    monkeypatch.delenv("ENGRAM_REFUSAL_PAUSE", raising=False)
    if pause:
        monkeypatch.setenv("ENGRAM_REFUSAL_PAUSE", pause)
    seconds = []
    monkeypatch.setattr("simulations.__main__.time", SimpleNamespace(sleep=seconds.append))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        status, _, err = engram(*command)
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert (status, seconds) == (2, slept)
    assert ("ending in 300 s" in err) == bool(slept)


# --- As processes ----------------------------------------------------------------------------


def start(*args, cwd):
    engram = Path(sys.executable).parent / "engram"
    return subprocess.Popen([engram, *args], cwd=cwd, stderr=subprocess.PIPE, text=True)


def test_a_pause_ends_when_it_is_told_to(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGRAM_REFUSAL_PAUSE", "600")
    process = start("node", "none", cwd=tmp_path)
    while "ending in 600 s" not in process.stderr.readline():
        assert process.poll() is None
    process.terminate()
    assert process.wait(timeout=60) == 2


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_ended_from_outside_goes_on(engram, tmp_path, end):
    sets = [*SETS, "--set", "num-rounds=60", "--set", "memory=carry"]
    process = start("run", *sets, "--out", "ended", cwd=tmp_path)
    metrics = tmp_path / "ended" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (
        not metrics.is_file() or len(metrics.read_text().splitlines()) < 5
    ):
        time.sleep(0.01)
    process.send_signal(end)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if end == signal.SIGINT else -signal.SIGKILL), err
    if end == signal.SIGINT:
        assert "go on with: engram run --resume ended" in err
    assert RunRecord.open(Path("ended")).results is None
    assert engram("run", "--resume", "ended")[0] == 0
    assert engram("run", *sets, "--out", "whole")[0] == 0
    one, other = (
        [{k: v for k, v in row.items() if k != "ms"} for row in RunRecord.open(Path(name)).rows()]
        for name in ("whole", "ended")
    )
    assert one == other


def test_a_decoy_package_does_not_touch_the_command(tmp_path):
    for room in ("client", "engram", "federation", "server", "strategies", "simulations"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise SystemExit('the decoy ran')")
    process = start("run", *SETS, "--out", "run", cwd=tmp_path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert (tmp_path / "run" / "results.json").is_file()
    assert RunRecord.open(tmp_path / "run").results["rounds"] == 4
