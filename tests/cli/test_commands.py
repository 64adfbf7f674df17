"""The engram command before any work is done: its help, its refusals, its methods."""

import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Literal

import numpy as np
import pytest
from pydantic import Field
from rich.console import Console
from typer.main import get_command, get_group
from typer.testing import CliRunner

from engram.cli import cli, options, show_cli
from engram.cli.cli import COMMANDS, app
from engram.settings.base import GROUPS, SharedSettings
from engram.settings.families import METHODS
from engram.settings.fields import Float, Int, Settings, range_of
from tests.samples import entry

HEAVY = ["torch", "sklearn", "numba", "matplotlib", "pandas", "flwr", "numpy", "grpc", "ray"]
SHOWN = (
    *("--help", "--version", "run --help", "federation --help", "export --help", "predict --help"),
    *("methods", "methods pfedme --json", "register --help", "status --help"),
)
REFUSED = (
    *("rnu", "--plugin nowhere run pfedme", "--vers", "run --sed 3", "run pfedmy"),
    *("run --set numrounds=3", "run pfedme --set eta=-1", "run --config none.toml"),
    *("compare fedavg --set batch-size=0", "compare pfedme --set nu=3", "runs none"),
    *("federation --set numrounds=3", "export none --common", "adapt none --data rows.csv"),
    *("status none", "superlink none", "tune pfedme --set etta=1"),
    *("--plugin nowhere node none", "node none", "memory list none"),  # what a node stands on
)
LIGHT = [*((line, 0) for line in SHOWN), *((line, 2) for line in REFUSED), ("node --help", 0)]
CALLS = """
import json, sys
from engram.cli.__main__ import main

heavy, cases = json.loads(sys.argv[1])
for line, status in cases:
    sys.argv = ["engram", *(words := line.split())]
    try:
        main()
        found = 0
    except SystemExit as end:
        found = end.code or 0
    if {"tune", "node", "memory"} & {*words}:
        heavy = [name for name in heavy if name not in ("flwr", "grpc", "numpy")]
    loaded = [name for name in heavy if name in sys.modules]
    if (found, loaded) != (status, []):
        raise SystemExit(f"engram {line}: status {found}, and it has loaded {loaded}")
"""


BEGIN = """
import sys
import engram.simulations.engine, engram.strategies.running.base
from engram.data.load_federation import federated_data
from engram.settings.experiment import Experiment

own = {"num_clients": 2, "clients_per_round": 2, "partition": "natural"}
federated_data(Experiment(dataset=f"npz:{sys.argv[1]}", **own))
raise SystemExit(", ".join(name for name in sys.argv[2:] if name in sys.modules) or 0)
"""


def check(code, *words):
    """Runs code in a process of its own, which ends with the status 0 if all is well."""
    line = [sys.executable, "-c", code, *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def engram(monkeypatch):
    """Runs the command; returns its status and its output, 200 characters wide."""
    for module, name in ((options, "console"), (show_cli, "out")):
        monkeypatch.setattr(module, name, Console(width=200, highlight=False))

    def call(*words):
        result = CliRunner().invoke(app, words)
        return result.exit_code, result.output

    return call


def test_help_and_refusals_load_nothing_heavy():
    check(CALLS, json.dumps([HEAVY, LIGHT]))


def test_a_run_begins_without_what_it_does_not_need(tmp_path):
    y = np.arange(40) % 2
    np.savez(tmp_path / "rows.npz", x=np.ones((40, 3), np.float32), y=y, task=np.arange(40) // 20)
    # Each of them takes some tenths of a second. (Digits are scikit-learn's, which has the others.)
    late = "sklearn", "pandas", "matplotlib", "scipy.stats", "torchvision"
    check(BEGIN, str(tmp_path / "rows.npz"), *late)


def test_the_first_lines_of_help_are_the_commands_own():
    found = {}
    for module in set(COMMANDS.values()):
        group = get_group(import_module(module).app)
        study = module == COMMANDS["reproduce"]
        found |= {"reproduce": group} if study else group.commands
    own = {name: command.help.splitlines()[0] for name, command in found.items()}
    assert own == {name: cli.first_line(name) for name in COMMANDS}


def test_help_is_one_screen_of_groups(engram):
    out = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"}).output
    assert len(out.splitlines()) <= 60
    places = [out.index(f"─ {title} ─") for title in cli.GROUPS]
    assert places == sorted(places)


def test_examples_are_in_the_help_and_are_commands(engram):
    for name in COMMANDS:
        shown, examples = engram(name, "--help")[1], cli.examples_of(name)
        assert len(examples) == 2
        for line in examples:
            with entry(line):
                assert line in shown
                check_command(line)


def check_command(line):
    """Reads a command as `engram` would, which refuses what it does not know."""
    program, *words = line.rpartition(" && ")[2].split()
    if program != "engram":  # what starts what this command has made
        return
    command, context = get_command(app), None
    while hasattr(command, "resolve_command"):
        context = command.make_context("", words, parent=context, resilient_parsing=True)
        _, command, words = command.resolve_command(context, words)
    command.make_context("", words, parent=context)


def test_the_version_is_printed_with_those_of_what_computes(engram):
    status, out = engram("--version")
    names = ("engram", "flwr", "torch")
    assert status == 0
    assert out == "engram {} (flwr {}, torch {})\n".format(*map(version, names))


def test_help_of_run_has_every_shared_setting_under_its_groups_title(engram):
    status, out = engram("run", "--help")
    assert status == 0
    places = []
    for group in GROUPS:
        places.append(out.index("\n" + group.__doc__.partition(".")[0]))
        for key, default in group.defaults().items():
            row = re.search(rf"│ {key} +│ {re.escape(json.dumps(default))} ", out)
            assert row, key
            places.append(row.start())
    assert places == sorted(places)
    assert "engram methods METHOD shows a method's own settings" in out


def test_other_commands_say_where_the_settings_are(engram):
    for command in ("compare", "data", "federation"):
        status, out = engram(command, "--help")
        assert (status, "batch-size" in out) == (0, False)
        assert "see engram run --help" in out


def test_methods_are_listed_with_meaning_and_source(engram):
    status, out = engram("methods", "--json")
    assert status == 0
    rows = json.loads(out.splitlines()[-1])["methods"]
    assert [row["method"] for row in rows] == list(METHODS)
    for row in rows:
        method = METHODS[row["method"]]
        assert row == {"method": method.name, "meaning": method.meaning, "source": method.source}
        for text in row.values():
            assert text in out


def test_a_method_shows_where_its_settings_are_searched(engram):
    _, out = engram("methods", "fedrep", "--json")
    rows = json.loads(out.splitlines()[-1])["settings"]
    searched = {"fedrep.eta": "0.001..1:log", "fedrep.personal-share": "0.1..0.9"}
    assert {row["setting"]: row["searched"] for row in rows} == searched
    assert re.search(r"│ personal-share +│ 0\.8 +│ .* │ 0\.1\.\.0\.9 +│ share of", out)
    assert "adapt-lr" not in out
    assert "engram tune searches adapt-lr, too: 0.001..1:log.\n" in engram("methods", "fedbabu")[1]


def test_a_method_shows_its_settings(engram):
    for name in METHODS:
        with entry(name):
            status, out = engram("methods", name, "--json")
            method, found = METHODS[name], json.loads(out.splitlines()[-1])
            assert status == 0
            assert out.startswith(f"{name}: {method.meaning}\nSource: {method.source}\n")
            assert {row["setting"]: row["default"] for row in found["settings"]} == {
                f"{name}.{key}": value for key, value in method.defaults().items()
            }
            for key, default in method.defaults().items():
                assert re.search(rf"│ {key} +│ {re.escape(json.dumps(default))} ", out), key
            assert len(found["not-read"]) == len(method.unread & SharedSettings.model_fields.keys())
            for key in found["not-read"]:
                assert key in out


class Fields(Settings):
    """One field of each kind."""

    number: Float = Field(1.0)
    positive: Float = Field(1.0, gt=0)
    share: Float = Field(0.5, ge=0, lt=1)
    count: Int = Field(1, ge=1)
    seed: Int = Field(0, ge=0, lt=2**32)
    arms: Int = Field(3, ge=2, le=1000)
    history: Literal["batch", "all"] = "all"
    hessian: Literal["exact", "first-order", "finite-difference"] = "exact"
    on: bool = True
    path: str = ""


def test_ranges_are_those_of_the_fields():
    assert {name: range_of(field) for name, field in Fields.model_fields.items()} == {
        "number": "number",
        "positive": "number, above 0",
        "share": "number, at least 0, below 1",
        "count": "whole number, at least 1",  # every count is bounded by 2^32, which is not told
        "seed": f"whole number, at least 0, below {2**32}",
        "arms": "whole number, at least 2, at most 1000",
        "history": "batch or all",
        "hessian": "exact, first-order or finite-difference",
        "on": "true or false",
        "path": "text",
    }
