"""The engram command, as a user types it."""

import io
import json
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from engram.cli import progress
from engram.runs.run import Run
from engram.settings.families import METHODS
from engram.settings.fingerprint import source_root
from engram.settings.settings_files import RUN_KEYS
from tests.cli.words import SETS, let
from tests.samples import entry
from tests.support import write_plug_in

PRESETS = source_root() / "simulations" / "presets"


@pytest.mark.usefixtures("drawn")
def test_run_records_what_it_shows(engram):
    status, out, _ = engram("run", *SETS, "--out", "mine", "--json")
    assert status == 0
    found = json.loads(out.splitlines()[-1])
    assert found["run"] == "mine"
    (row,) = found["methods"]
    results = Run.open(Path("mine")).results
    assert row["accuracy"] == results["selected"]["accuracy"]
    for key in ("", "-std", "-p10", "-worst"):
        assert f"{100 * row[f'accuracy{key}']:.1f}" in out
    assert f"{100 * row['accuracy-common']:.1f}" in out
    assert f"{row['ms-per-round']:.1f}" in out
    assert row["client-ms"] == pytest.approx(row["ms-per-round"] / 4)  # they train in one process
    model = Run.open(Path("mine")).load_checkpoint().model
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
    assert all(re.fullmatch(r"local-moml-digits-\d{4}-\d\d-\d\d(-2)?", name) for name in names)


def test_config_files_and_overrides_in_their_order(engram):
    Path("mine.toml").write_text('method = "fedavg"\neta = 0.3\n')
    status, *_ = engram("run", *SETS, "--config", "mine.toml", "--set", "eta=0.05", "--out", "a")
    assert status == 0
    settings = Run.open(Path("a")).config["settings"]
    assert (settings["method"], settings["fedavg.eta"]) == ("fedavg", 0.05)


def test_without_a_terminal_each_evaluation_is_a_line(engram):
    status, out, err = engram("run", *SETS, "--out", "mine", "--json")
    assert status == 0
    rows = [row for row in Run.open(Path("mine")).rows() if "accuracy" in row]
    assert [row["round"] for row in rows] == [0, 2, 4]
    lines = ["a round: a client of local-moml receives .* KiB, sends .* in training"]
    lines += [
        rf"local-moml seed 0: {row['round']} of 4 rounds, \d+\.\d s, "
        rf"accuracy {100 * row['accuracy']:.1f} % \(global model: .* %\)"
        for row in rows
    ]
    lines[2] += r", about \d+ s left"  # of round 2
    cohorts = (row.get("cohort", ()) for row in Run.open(Path("mine")).rows())
    asked = set().union(*cohorts)
    lines.append(f"{20 - len(asked)} of 20 clients were never sampled; they get .*")
    assert re.fullmatch("".join(f"{line}\n" for line in lines), err)
    assert json.loads(out.splitlines()[-1])["run"] == "mine"
    assert " of 4 rounds" not in out


def test_without_a_terminal_tables_are_a_line_as_often(engram):
    sets = let("method=meta-ban", "dataset=linear-groups", "num-rounds=5", "eval-every=2")
    _, _, err = engram("run", *sets, "--out", "t")
    assert re.findall(r"(\d) of 5 rounds.*regret", err) == ["2", "4", "5"]


def test_a_terminal_has_a_bar_instead(engram, monkeypatch):
    screen = io.StringIO()
    terminal_of_ours = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "err", terminal_of_ours)
    assert engram("run", *SETS, "--out", "mine")[0] == 0
    assert "4/4 rounds accuracy" in re.sub(r"\x1b\[[\d;?]*\w", "", screen.getvalue())
    assert " of 4 rounds" not in screen.getvalue()


def test_a_folder_that_is_no_run_is_not_resumed_on_a_federation(engram):
    status, out, err = engram("run", "fedavg", "--federation", "nowhere", "--resume", "")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "config.json" in err


def test_resume_keeps_the_engine(engram):
    engram("run", *SETS, "--set", "num-rounds=2", "--engine", "sequential", "--out", "parts")
    status, out, _ = engram("run", "--resume", "parts", "--set", "num-rounds=4", "--json")
    assert (status, json.loads(out.splitlines()[-1])["methods"][0]["rounds"]) == (0, 4)
    assert Run.open(Path("parts")).config["engine"] == "sequential"
    status, _, err = engram("run", "fedavg", "--resume", "parts")
    assert (status, err) == (2, "engram: parts is a run of local-moml, got fedavg\n")


def test_resume_by_another_source_is_said(engram, monkeypatch):
    engram("run", *SETS, "--set", "num-rounds=2", "--out", "parts")
    monkeypatch.setattr("engram.runs.writer.fingerprint", lambda: "another")
    _, _, err = engram("run", "--resume", "parts", "--set", "num-rounds=4")
    assert "goes on with another, whose numbers may differ" in err
    assert Run.open(Path("parts")).config["sources"][1:] == ["another"]


def test_a_run_of_an_unknown_method_asks_for_its_plug_in(engram, plug_ins, monkeypatch):
    write_plug_in(Path("one.py"), "own")
    assert engram("--plugin", "one", "run", "own", *SETS, "--out", "mine")[0] == 0
    (source,) = Run.open(Path("mine")).config["sources"]
    assert re.fullmatch("[0-9a-f]{16} with plug-in one [0-9a-f]{16}", source)
    del METHODS["own"], sys.modules["one"]
    monkeypatch.setenv("ENGRAM_PLUGINS", "")
    for words in (["show", "mine"], ["run", "--resume", "mine"]):
        status, _, err = engram(*words)
        assert status == 2
        assert re.fullmatch("engram: mine is a run of 'own', .* engram --plugin NAME\n", err)
    assert engram("run", "own")[2].startswith("engram: method must be one of those that ")
    assert engram("status", "mine")[0] == 0
    Path("pyproject.toml").write_text('[tool.engram]\nplugin = "one"\n')
    assert engram("run", "--resume", "mine", "--set", "num-rounds=6")[0] == 0
    assert Run.open(Path("mine")).config["sources"] == [source]


def test_the_app_for_flower_has_the_keys_of_its_run_config(engram, plug_ins):
    write_plug_in(Path("one.py"), "own")
    status, out, _ = engram("--plugin", "one", "app", "apps/mine")
    assert (status, out) == (0, f"ENGRAM_PLUGINS={Path.cwd()}/one flwr run apps/mine\n")
    config = tomllib.loads(Path("apps/mine/pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert config["config"] == dict.fromkeys(("engram", *RUN_KEYS), "")
    told = "engram: apps/mine is there already: name a new folder\n"
    assert engram("app", "apps/mine")[2] == told


def test_compare_runs_algorithms_side_by_side(engram):
    status, out, err = engram(
        *("compare", "fedavg", "pfedme", "--seeds", "2", *SETS, "--out", "c", "--json"),
        *("--set", "pfedme.lambda=20"),
    )
    assert status == 0
    rows = json.loads(out.splitlines()[-1])["methods"]
    names = ("local", "fedavg", "pfedme")  # local is a reference
    told = re.findall(r"^(\S+) seed 0 \([135] of 6\): (\d) of 4 rounds", err, re.MULTILINE)
    assert told == [(name, done) for name in names for done in "024"]
    costs = re.findall(
        r"^a round: a client of (\S+) receives (\S+) KiB, sends (\S+) KiB", err, re.M
    )
    assert [name for name, *_ in costs] == list(names)  # once for both seeds
    counted = [Run.open(Path(f"c/{name}-seed1")).results["client-bytes"] / 1024 for name in names]
    assert [float(one) + float(two) for _, one, two in costs] == pytest.approx(counted, abs=0.1)
    labels = [f"{name}{end}" for name in names for end in ("", " + fine-tuning")]
    assert [row["method"] for row in rows] == labels
    ended = [Run.open(Path(f"c/fedavg-seed{seed}")).results for seed in (0, 1)]
    each = [results["selected"]["accuracy"] for results in ended]
    assert rows[2]["accuracy"] == pytest.approx(np.mean(each))
    assert rows[2]["accuracy-seed-std"] == pytest.approx(np.std(each, ddof=1))
    assert ["accuracy-common" in row for row in rows] == [False, False, True, True, True, True]
    settings = [
        Run.open(Path(f"c/{name}-seed1")).config["settings"] for name in ("fedavg", "pfedme")
    ]
    assert [s.get("pfedme.lambda") for s in settings] == [None, 20.0]
    files = {path.name for path in Path("c").iterdir()}
    assert {"comparison.json", "results.json", "gains.png", "accuracy.png", "clients.png"} <= files
    shown = engram("show", "c", "--json")
    assert json.loads(shown[1].splitlines()[-1])["methods"] == rows


def test_compare_goes_on_where_it_was_interrupted(engram, monkeypatch):
    from engram.simulations import engine

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


@pytest.mark.usefixtures("drawn")
def test_data_shows_who_holds_what(engram):
    ditto = let("method=ditto", "hidden=40,40")
    status, out, _ = engram("data", *ditto, "--out", "held.png", "--json")
    assert status == 0
    assert "validation" in out
    size = f"{4 * (64 * 40 + 40 + 40 * 40 + 40 + 40 * 10 + 10) / 1024:.1f} KiB"
    assert f"a client of ditto receives {size}, sends {size} and keeps {size};" in out
    found = json.loads(out.splitlines()[-1])
    for part, rows in (("training", 32), ("validation", 8), ("test", 30)):
        assert np.array(found[part]).shape == (20, 10)
        assert sum(found[part][0]) == rows
    assert Path("held.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("drawn")
def test_data_without_classes_are_counted(engram):
    for task, y in [
        ("regression", np.linspace(-1, 1, 40)),
        ("regression", np.arange(40)),
        ("multi-label", np.ones((40, 3))),
        ("next-token", np.ones((40, 2), int)),
    ]:
        x = np.ones((40, 2), int if task == "next-token" else float)
        np.savez("rows.npz", x=x, y=y, task=np.arange(40) % 2)
        given = let("dataset=npz:rows.npz", f"task={task}", "model=linear")
        with entry(task):
            status, out, _ = engram("data", *given, "--out", "held.png", "--json")
            assert status == 0
            assert "of class" not in out
            found = json.loads(out.splitlines()[-1])
            assert found["training"] == [[10], [10]]  # of 20, 8 are held out; and of 12, 2
            assert (found["validation"], found["test"]) == ([[2], [2]], [[8], [8]])
            assert Path("held.png").read_bytes().startswith(b"\x89PNG")


def test_presets_run(engram):
    for name in ("cross_device", "cross_silo"):
        few = let("num-rounds=2", "local-steps=1")
        assert engram("run", "--config", PRESETS / f"{name}.toml", "--out", name, *few)[0] == 0
        assert Run.open(Path(name)).results["rounds"] == 2


@pytest.mark.full
@pytest.mark.usefixtures("plug_ins")
def test_speakers_share_one_half_of_the_adapters_of_a_small_language_model(engram):
    words = ("--plugin", PRESETS / "speakers", "run", "--config", PRESETS / "speakers.toml")
    assert engram(*words, "--out", "spoken", *let("num-rounds=2", "local-steps=1"))[0] == 0
    sent = Run.open(Path("spoken")).load_checkpoint().model
    assert len(sent) == 2 * 4 + 1  # on four layers of two blocks, and on the head
    assert all(".lora_A." in slot for slot in sent)
    letters, following = sys.modules["speakers"].speakers(3)
    assert np.array_equal(letters.ravel()[1:], following.ravel()[:-1])


def test_the_demo_compares_eight_methods_with_settings_of_their_own(engram):
    makefile = (source_root() / "Makefile").read_text()
    methods = re.search(r"^DEMO := (.*)$", makefile, re.MULTILINE)[1].split()
    status, out, _ = engram(
        *("compare", *methods, "--config", PRESETS / "demo.toml", "--seeds", "1", "--out", "demo"),
        *let("num-rounds=2", "local-steps=2", "num-clients=12", "clients-per-round=6"),
    )
    assert status == 0
    assert "recorded in demo: gains.png" in out
    given = tomllib.loads((PRESETS / "demo.toml").read_text())
    assert given.pop("num-rounds") == 30
    assert given.pop("num-clients") == 2 * given.pop("clients-per-round") == 60
    assert given.pop("partition") == "pathological"
    assert list(given) == methods
    for name, own in given.items():
        settings = Run.open(Path(f"demo/{name}-seed0")).config["settings"]
        for key, value in own.items():
            assert settings.get(f"{name}.{key}", settings.get(key)) == value


STRANGE = "\x1b[31m\u202e"


def test_whatever_a_command_is_given_moves_no_cursor(engram, monkeypatch, tmp_path):
    lines = [
        *("app {}", "app", "new {}", "run {}", "run fedavg --out {} --set num-rounds=1", "{}"),
        *("run fedavg --set {}=1", "memory new-key {}", "runs {}", "show {}", "status {}"),
        *("methods {}", "export {} --client 0", "predict {} rows.csv", "board {}"),
        "init-federation {} --clients 1",
        *(
            f"init-federation {{0}} --clients 1; {then}"
            for then in (
                *("init-federation {0} --add-client", "init-federation {0} --new-key 0"),
                *("renew {0}/server", "memory list {0}/client-0", "memory forget {0}/client-0"),
                *("approve {0}/client-0", "ledger {0}/client-0", "log {0}/client-0 --check"),
                "doctor {0}/client-0",
            )
        ),
    ]
    for number, words in enumerate(lines):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        for each in words.format(STRANGE).split("; "):
            with entry(each):
                _, out, err = engram(*each.split())
                assert out + err
                shown = [line for line in (out + err).split("\n") if not line.isprintable()]
                assert not shown
