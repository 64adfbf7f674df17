"""Commands are derived from settings: options, defaults, help, and what is refused."""

import dataclasses
import importlib.util
import json
import sys
import types
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from engram.cli import cli
from engram.settings.errors import Refused
from engram.studies import command
from engram.studies.command import STUDIES, app, command_of
from engram.studies.settings import StudySettings, argument, flag_of, option, option_of
from engram.studies.study import Report, Study, write_plan
from tests.samples import entry


@dataclass(frozen=True)
class Coins(StudySettings):
    """Tosses coins."""

    coins: tuple[str, ...] = argument((), among=("penny", "dime"), help="Which.")
    tosses: int = option(3, least=1, most=99, help="Of each.")
    cheat: bool = option(False, help="Heads alone.")
    table: Path = option(Path("desk"), help="Where.")


def toss(coin, tosses, report):
    report(tosses, tosses)
    return [{"coin": coin, "errors": [1.0] * tosses}]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The smallest study that there can be, and its command."""
    body = types.ModuleType("coins_study")
    body.work = lambda settings, pool: pool.run(
        {coin: partial(toss, coin, settings.tosses) for coin in settings.coins}
    )
    body.report = lambda settings, done: Report(
        ["tossed"], {"rows": done, "worst": float("inf")}, {"x.csv": b"1"}
    )
    monkeypatch.setitem(sys.modules, "coins_study", body)
    commands = typer.Typer()
    commands.command("coins")(command_of(Study("coins", Coins, "coins_study", "tosses")))
    commands.command("other")(command_of(STUDIES[0]))
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        return CliRunner().invoke(commands, ["coins", "--processes", "1", *map(str, words)])

    return invoke


def test_a_study_is_its_settings_its_jobs_and_its_report(run, tmp_path):
    out = tmp_path / "run"
    result = run("dime", "--tosses", 2, "--cheat", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["rows"] == [{"coin": "dime", "errors": [1.0, 1.0]}]
    assert found["worst"] is None  # JSON knows no infinity
    plan = json.loads((out / "plan.json").read_text())
    assert (plan.pop("experiment"), plan.pop("format")) == ("coins", 2)
    table = str(tmp_path / "desk")  # which another folder's command finds, too
    assert plan == {"coins": ["dime"], "tosses": 2, "cheat": True, "table": table}
    written = {path.name for path in out.iterdir()}
    assert written == {"dime.json", "plan.json", "results.json", "x.csv"}


def test_an_interrupted_study_goes_on(run, tmp_path, monkeypatch):
    assert run("--out", tmp_path / "whole").exit_code == 0
    real, calls = toss, []

    def interrupted(*job):
        calls.append(job[0])
        if calls == ["penny", "dime"]:
            job[-1](1, 3)
            raise KeyboardInterrupt
        return real(*job)

    monkeypatch.setattr(sys.modules[__name__], "toss", interrupted)
    part = tmp_path / "part"
    stopped = run("--out", part)
    assert stopped.exit_code == 130
    assert f"engram reproduce coins --resume {part}" in stopped.output
    assert run("--resume", part).exit_code == 0
    assert calls == ["penny", "dime", "dime"]
    one, other = (
        json.loads((tmp_path / name / "results.json").read_text())["rows"]
        for name in ("whole", "part")
    )
    assert one == other


def test_folders_that_are_no_study_of_this_name_are_refused(run, tmp_path):
    out = tmp_path / "run"
    assert run("--out", out).exit_code == 0
    plan = json.loads((out / "plan.json").read_text())
    (out / "results.json").unlink()
    with pytest.raises(Refused, match="is another run's: name another --out"):
        write_plan(out, "coins", Coins())  # as if both had looked for a free name before
    assert "is there already" in str(run("--out", out).exception)
    assert "no run 'nowhere'" in str(run("--resume", "nowhere").exception)
    assert "has no plan.json" in str(run("--resume", tmp_path).exception)
    for text, message in (
        (json.dumps(plan | {"experiment": "dice"}), "engram reproduce dice, not coins"),
        (json.dumps(plan | {"coins": ["euro"]}), "coin must be one of penny, dime"),
        (json.dumps(plan | {"tosses": "many"}), "plan.json is damaged"),
        ("{}", "plan.json is damaged"),
    ):
        (out / "plan.json").write_text(text)
        assert message in str(run("--resume", out).exception)
    (out / "plan.json").write_text(json.dumps(plan))
    for text in ("[{", "[{}]"):
        (out / "dime.json").write_text(text)
        assert "dime.json is damaged: remove it" in str(run("--resume", out).exception)


def test_what_was_kept_is_not_done_again(run, tmp_path):
    out = tmp_path / "run"
    assert run("--out", out).exit_code == 0
    (out / "dime.json").write_text('[{"errors": [7.0]}]')
    (out / "penny.json").unlink()
    again = run("--resume", out)
    assert again.exit_code == 0, again.output
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert [row["errors"] for row in rows] == [[1.0] * 3, [7.0]]
    for words in (["--tosses", "3"], ["dime"], ["--out", "x"]):
        with pytest.raises(Refused, match="give nothing else"):
            raise run("--resume", out, *words).exception


def test_a_folder_of_another_version_is_refused(run, tmp_path):
    out = tmp_path / "run"
    assert run("--out", out).exit_code == 0
    plan = json.loads((out / "plan.json").read_text())
    unversioned = {key: value for key, value in plan.items() if key != "format"}
    for other in (plan | {"alpha": 1}, plan | {"format": 1}, unversioned):
        (out / "plan.json").write_text(json.dumps(other))
        assert "was begun by another version of Engram" in str(run("--resume", out).exception)


def test_a_finished_study_is_shown_again(run, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "STUDIES", [Study("coins", Coins, "coins_study", "tosses")])
    out = tmp_path / "run"
    assert run("--out", out).exit_code == 0
    shown = CliRunner().invoke(cli.app, ["show", str(out)])
    assert shown.output.startswith("tossed\nrecorded in ")
    (out / "results.json").unlink()
    again = f"is not finished: go on with engram reproduce coins --resume {out}"
    assert again in str(CliRunner().invoke(cli.app, ["show", str(out)]).exception)
    (out / "plan.json").write_text('{"experiment": "dice"}')
    unknown = "plan.json must be one of coins, got 'dice'"
    assert unknown in str(CliRunner().invoke(cli.app, ["show", str(out)]).exception)


def test_what_is_not_possible_is_refused_before_anything_is_written(run, tmp_path):
    assert Coins().coins == ("penny", "dime")  # no names are all names
    for words, message in [
        (["euro"], "coin must be one of penny, dime, got 'euro'"),
        (["dime", "dime"], "coins must be named once each, got dime, dime"),
        (["--tosses", 0], "tosses must be at least 1, got 0"),
        (["--tosses", 100], "tosses must be at most 99, got 100"),
        (["--ray", "auto"], "ray and processes exclude each other"),
    ]:
        with entry(words):
            result = run(*words)
            assert isinstance(result.exception, Refused), result.output
            assert message in str(result.exception)
            assert list(tmp_path.iterdir()) == []


def test_every_field_is_an_option_with_its_meaning():
    for study in STUDIES:
        with entry(study):
            assert importlib.util.find_spec(study.module)
            text = " ".join(
                CliRunner().invoke(app, [study.name, "--help"], terminal_width=300).output.split()
            )
            assert study.settings.__doc__.splitlines()[0] in text
            for each in dataclasses.fields(study.settings):
                told = option_of(each)
                assert told.help
                if not told.positional:
                    assert (told.flags or (f"--{flag_of(each)}",))[0] in text
            assert ("--resume" in text) == ("--ray" in text) == (not study.whole)


def test_help_waits_for_no_study():
    import subprocess

    code = (
        "import sys\n"
        "from engram.meta.studies import settings\n"
        "from engram.tables.studies import settings\n"
        "from engram.bandits.studies import settings\n"
        "from engram.online.studies import settings\n"
        "print(sorted({'torch', 'sklearn', 'numba', 'numpy', 'pandas'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
