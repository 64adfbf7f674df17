"""Modules from outside: where they are found, what is refused, what the fingerprint says."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import engram
from engram.server.app import main
from engram.settings.errors import Refused
from engram.settings.families import METHODS
from engram.settings.fingerprint import fingerprint, source_root
from engram.settings.plugins import VARIABLE, add_plugins, load_plugins, plugins, project_plugins
from tests.samples import entry
from tests.support import write_plug_in

pytestmark = pytest.mark.usefixtures("plug_ins")


def write(path, text):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_names_come_with_commas_and_count_once():
    write_plug_in(Path("one.py"), "first")
    write("two/__init__.py", "")
    write_plug_in(Path("two/rules.py"), "second")
    add_plugins(" one, two.rules,")
    add_plugins("one")
    assert plugins() == (f"{Path.cwd()}/one", f"{Path.cwd()}/two.rules")
    assert "one" not in sys.modules
    load_plugins()
    load_plugins()
    assert {*list(METHODS)[-2:]} == {"first", "second"}


@pytest.mark.processes
def test_a_process_that_is_started_elsewhere_finds_them(tmp_path):
    # A name of ours, which would hide it from whoever looks here first.
    write("here/client.py", "raise SystemExit('not ours')")
    write_plug_in(Path("here/outside.py"), "first")
    add_plugins("here/outside")
    code = (
        "from engram.settings.plugins import load_plugins; load_plugins(); import engram.client.app"
        "; from engram.settings.families import METHODS; print('first' in METHODS)"
    )
    line = [sys.executable, "-c", code]
    found = subprocess.run(line, cwd="/", capture_output=True, text=True, check=False)
    assert found.stdout == "True\n", found.stderr


def test_a_module_that_is_nowhere_is_refused():
    before, told = plugins(), "plug-in must be a Python module that is installed, or in"
    for name in ["nowhere", "no.where", "a-b", "1x", "__main__", "nowhere/one", "sys"]:
        with entry(name), pytest.raises(Refused, match=told):
            add_plugins(name)
        assert plugins() == before


def test_a_folder_is_looked_through_only_if_it_is_named(monkeypatch):
    write_plug_in(Path("one.py"), "first")
    monkeypatch.setenv("ENGRAM_PLUGINS", "one")
    told = "plug-in one cannot be imported: ModuleNotFoundError: No mod"
    with pytest.raises(Refused, match=told):
        load_plugins()


def refusal(text, number):
    """Returns the refusal of a plug-in of a given text, under a new name."""
    write(f"plug{number}.py", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "")
        add_plugins(f"plug{number}")
        with pytest.raises(Refused) as refused:
            load_plugins()
    head, told = f"plug-in plug{number} cannot be imported: ", str(refused.value)
    assert told.startswith(head)
    assert "\n" not in told
    return told.removeprefix(head)


def test_what_cannot_be_imported_is_refused_in_one_line():
    faults = [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("1 +", "SyntaxError: invalid syntax (plug1.py, line 1)"),
        ("import sys; sys.exit('a script')", "SystemExit: a script"),
        ("raise RuntimeError('two\\nlines')", r"RuntimeError: two\nlines"),
    ]
    for number, (text, reason) in enumerate(faults):
        with entry(text):
            assert refusal(text, number).startswith(reason)


MOVING = "see 'Moving from LocalRule' in docs/extending.md"
LOCAL_RULES = [
    ("import engram\n\n\nclass Own(engram.LocalMethod):\n    name = 'own'", "ImportError: engram"),
    ("from engram import LocalRule", "ImportError: engram.LocalRule must be replaced by engram."),
    ("from engram.settings.families.local import LocalMethod", "ModuleNotFoundError: No module "),
    ("from engram.settings.families import common", "ImportError: cannot import name 'common'"),
    (
        "import engram\n\n\n@engram.method\nclass Own:\n    name = 'own'",
        "ValueError: name of a method must be a text",
    ),
    (
        "import engram\n\n\n@engram.method('own')\nclass Own:\n    def rule(self, loss): ...",
        "ValueError: method own must be a class with build",
    ),
]


def test_a_plug_in_made_of_a_local_rule_is_refused_with_the_page_on_moving():
    assert f"## {MOVING[5:26]}\n" in (source_root() / "docs" / "extending.md").read_text()
    for number, (text, reason) in enumerate(LOCAL_RULES):
        with entry(text):
            told = refusal(text, f"_moved{number}")
            assert told.startswith(reason)
            assert told.count(MOVING) == 1


def test_the_name_of_a_method_that_there_is_already_is_refused():
    write_plug_in(Path("one.py"), "fedavg")
    add_plugins("one")
    with pytest.raises(Refused, match="ValueError: name must be a name that no other"):
        load_plugins()


def test_the_front_door_loads_them():
    write_plug_in(Path("one.py"), "first")
    add_plugins("one")
    assert "first" in engram.methods()


def test_the_coordinator_loads_them(monkeypatch):
    monkeypatch.setenv("ENGRAM_PLUGINS", "nowhere")
    with pytest.raises(Refused, match="plug-in nowhere"):
        main(None, SimpleNamespace(run_config={}))


def test_the_fingerprint_names_plug_ins_and_changes_with_any_of_their_modules(monkeypatch):
    ours = fingerprint()
    for folder in ("here", "there"):
        write(f"{folder}/pack/__init__.py", "")
        write(f"{folder}/pack/deep/rules.py", "rule = 1")
        write(f"{folder}/pack/notes.txt", folder)
    write("single.py", "")

    def digest(*names):
        monkeypatch.setenv("ENGRAM_PLUGINS", "")
        add_plugins(",".join(names))
        return fingerprint()

    before = digest("here/pack", "single")
    base, pack, single = before.split(" with plug-in ")
    assert base == ours
    assert (pack[:5], single[:7]) == ("pack ", "single ")
    assert digest("single", "there/pack") == before
    write("there/pack/deep/rules.py", "rule = 2")
    changed = digest("single", f"{Path.cwd()}/there/pack.deep.rules")
    assert changed != before
    assert changed.split(" with plug-in ")[2] == single


def test_a_projects_plug_ins_are_those_of_its_table():
    assert project_plugins() == ""
    write("pyproject.toml", "[tool.ruff]\nline-length = 100\n")
    assert project_plugins() == ""
    write("pyproject.toml", '[tool.engram]\nplugin = "one, two.rules"\n')
    assert project_plugins() == "one, two.rules"


def test_a_projects_table_of_another_kind_is_refused():
    for text, reason in [
        ("[tool.engram]\nplugin = 3", r'.tool.engram. of pyproject.toml must be plugin = "NAME"'),
        ('[tool.engram]\nplugins = "one"', "must be plugin = "),
        ('[tool.engram]\nplugin = "one"\nother = 1', "must be plugin = "),
        ("[tool.engram", "pyproject.toml cannot be read: "),
    ]:
        write("pyproject.toml", text)
        with entry(text), pytest.raises(Refused, match=reason):
            project_plugins()
