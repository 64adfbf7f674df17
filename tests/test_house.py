"""The shape of the house: which room may import which, and whose the names are."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from itertools import chain

import numpy as np
import pytest

import engram
from engram.core import method as protocol
from engram.settings.fingerprint import source_root
from tests.source import ROOMS, module_of, source_files

ROOT = source_root()
# Arrows go down this list: a room may import those before it.
ARROWS = (
    *("core", "methods", "guards", "networks", "cohort", "scoring", "data", "settings", "wire"),
    *("link", "runs", "client", "flower", "strategies", "server", "simulations"),
    *("compare", "tune", "home", "studio", "cli"),
)
WINGS = ("tables", "bandits", "online", "meta", "attack", "sites", "studies")
AGAINST, OF_WINGS = 218, 55  # imports that are left to turn round; they may only become fewer
SCIENCE_ROOMS = ("core", "methods", "cohort", "networks", "online", "meta", "bandits", "tables")
NO_SCIENCE = ("core/streams.py", "core/machine.py", "core/memory_budget.py", "cohort/draws.py")
# They name what they import when it is looked at.
FRONT_DOORS = {ROOT / "engram" / name for name in ("__init__.py", "testing.py")}
SCIENCE = {"torch", "numpy", "scipy", "sklearn", "numba", "annotated_types"}
EXTRAS = {
    "engram/tables/lasso.py": {"cvxpy"},  # `pip install -c constraints.txt -e '.[convex]'`
    "engram/networks/vision.py": {"torchvision"},  # its networks, by name
    "engram/data/tokenizers.py": {"tokenizers"},  # `pip install 'engram[text]'`
    "engram/core/process_modes.py": {"os"},  # variables that imports of others set
}


@cache
def imports(path):
    """Returns the modules that a file imports, wherever in it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            found.append(str(node.module))
    return found


def imports_of_ours():
    """Yields the room of each module, and each room that it imports, as often as it does so."""
    for path in source_files():
        room = module_of(path).split(".")[1:2]
        for name in imports(path):
            if room and name.startswith("engram."):
                yield room[0], name.split(".")[1]


def test_rooms_import_along_the_arrows():
    against, of_wings = [], []
    for room, other in imports_of_ours():
        if room in ARROWS and other in WINGS:
            of_wings.append((room, other))
        elif room in ARROWS and other in ARROWS and ARROWS.index(other) > ARROWS.index(room):
            against.append((room, other))
    assert len(against) <= AGAINST, Counter(against)
    assert len(of_wings) <= OF_WINGS, Counter(of_wings)


def test_nothing_is_imported_but_as_engram():
    """A room of the checkout's root would be there twice, with two classes of one name."""
    bare = {*ROOMS, "federation"} - {"engram"}
    folders = (*ROOMS, "benchmarks", "tests", "docs")
    for path in source_files(*folders):
        assert not {name.split(".")[0] for name in imports(path)} & bare, path


def test_the_science_imports_science_only():
    standard = {"abc", "collections", "copy", "dataclasses", "functools", "itertools", "math"}
    standard |= {"operator"}
    standard |= {"reprlib"}  # checks.py: values in messages
    standard |= {"ast", "importlib", "json", "pathlib", "sys"}  # lazy.py, entries.py, __main__.py
    standard |= {"inspect", "types", "fnmatch"}  # tasks.py, functional.py, sharing.py
    standard |= {"contextlib", "threading"}  # derivatives.py, module.py: what one thread is at
    standard |= {"struct"}  # by_name.py: a dictionary's numbers into an array
    standard |= {"contextvars", "random"}  # process.py: what a call names, and where users draw
    standard |= {"hashlib", "io", "pickle"}  # constants.py: a digest of what a module holds
    standard |= {"re", "unicodedata"}  # text.py: words
    standard |= {"typing", "warnings"}  # families.py: a library's solver says where it has failed
    for path in chain(*((ROOT / "engram" / room).glob("*.py") for room in SCIENCE_ROOMS)):
        if path.as_posix().endswith(NO_SCIENCE):
            continue
        used = {name.split(".")[0] for name in imports(path)}
        extra = EXTRAS.get(path.relative_to(ROOT).as_posix(), set())
        assert used <= SCIENCE | standard | extra | {"engram"}, path


def test_methods_and_ways_to_train_import_the_core_and_not_each_other():
    for part, others in {
        "core": {"methods", "cohort"},
        "methods": {"cohort"},
        "cohort": {"methods"},
    }.items():
        for path in source_files(f"engram/{part}"):
            used = {name.split(".")[1] for name in imports(path) if name.startswith("engram.")}
            assert not used & others, path


def test_no_code_names_a_method_outside_its_file():
    """Studies and presets of papers' experiments aside; ``local`` is a word, too."""
    index = json.loads((ROOT / "engram/methods/index.json").read_text(encoding="utf-8"))
    methods, known = ROOT / "engram/methods", index.keys() - {"local"}
    assert len(known) == 38
    for path in source_files():
        if path.is_relative_to(methods) or "studies" in path.parts:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = set(re.findall(r"[a-z][a-z-]*", node.value))
                assert id(node) in told or not words & known, f"{path}:{node.lineno}"


def test_records_of_the_protocol_are_small():
    records = {name: getattr(protocol, name) for name in protocol.__all__}
    fields = {
        name: len(cls.__annotations__)
        for name, cls in records.items()
        if isinstance(cls, type) and cls.__module__ == protocol.__name__
    }
    assert len(fields) == 12
    assert max(fields.values()) <= 8


def test_docstrings_begin_with_what_they_are_about():
    riddles = re.compile(r'"""(What|Whose|Which|How|Of|Says)\b')
    for path in source_files(*ROOMS, "benchmarks"):
        assert not riddles.search(path.read_text(encoding="utf-8")), path


def test_no_other_distribution_owns_our_names():
    owners = importlib.metadata.packages_distributions()
    assert set(owners.get("engram", ["engram"])) == {"engram"}


def test_uv_is_kept_from_everything_that_pip_installs():
    # See [tool.uv] in pyproject.toml; a dependency that is missing there is downloaded each run.
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = config["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[\[<>=!~; ]", line)[0] for line in wanted}
    assert names == set(config["tool"]["uv"]["exclude-dependencies"])


def test_constraints_name_every_dependency_once():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line.split("==")[0].lower() for line in lines if line and not line.startswith("#")]
    assert len(set(pinned)) == len(pinned)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    assert {re.split(r"[\[<>=!~; ]", line)[0].lower() for line in wanted} <= set(pinned)


def test_the_files_of_the_makefile_are_there():
    named = re.findall(r"(?:tests|simulations)/[\w/.]+", (ROOT / "Makefile").read_text())
    assert all((ROOT / name).exists() for name in named), named


def pins(name):
    """Returns the versions that a file of constraints pins."""
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.lower().split("==") for line in lines if line and not line.startswith("#"))


def test_the_newest_flower_is_pinned_by_what_differs():
    usual, newest = pins("constraints.txt"), pins("constraints-newest.txt")
    assert all(usual[name] != version for name, version in newest.items())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (flower,) = (line for line in project["dependencies"] if line.startswith("flwr["))
    assert flower == f"flwr[simulation]>={usual['flwr']}"


def loaded(code, *words):
    """Returns our modules that a process of its own has loaded in the end."""
    code += "\nprint(*sorted(sys.modules))"
    line = [sys.executable, "-c", f"import sys\n{code}", *words]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split() if name.partition(".")[0] == "engram"}


def test_a_trainer_loads_no_more_modules_than_it_needs():
    found = loaded("import engram.cohort.trainer.trainer")
    files = {name for name in found if ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()}
    assert len(files) <= 53, sorted(files)  # packages without code are none


DITTO = {"method": "ditto"}
NOISE = {"method": "fedavg", "privacy": "central", "noise_multiplier": 1.0, "clip": 1.0}
CODED = DITTO | {"compress": "8-bit", "merge": "median"}


@pytest.mark.parametrize(
    ("settings", "most_files", "most_functions"),
    [
        (DITTO, 26, 130),
        pytest.param(NOISE, 38, 175, marks=pytest.mark.full),
        pytest.param(CODED, 35, 157, marks=pytest.mark.full),
    ],
    ids=["ditto", "central noise", "8 bits and a median"],
)
def test_one_more_round_goes_through_few_files(settings, most_files, most_functions, tmp_path):
    def called(rounds):
        """Returns the number of calls of each function of ours in a run."""
        count = Counter()

        def note(frame, event, _):
            place = frame.f_code.co_filename
            if event == "call" and place.startswith(ours):
                count[place, frame.f_code.co_firstlineno, frame.f_code.co_name] += 1

        given = settings | {"num_rounds": rounds, "progress": False}
        sys.setprofile(note)
        try:
            engram.simulate(dataset="digits", out=tmp_path / f"{len(seen)}", **given)
        finally:
            sys.setprofile(None)
        seen.append(count)

    ours = f"{ROOT}/engram/"
    seen = []
    for rounds in (2, 2, 4):  # what is done once in a process is done at first
        called(rounds)
    _, few, more = seen
    grown = {key for key, count in more.items() if count > few[key]}
    assert len({file for file, *_ in grown}) <= most_files
    # Comprehensions are functions in some versions of Python.
    assert len([name for *_, name in grown if not name.startswith("<")]) <= most_functions


HOSTING = """
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.settings.experiment import Experiment
from engram.strategies.running.base import STRATEGIES
import engram.client.app, engram.server.app

e = Experiment(dataset=f"npz:{sys.argv[1]}", num_clients=2, clients_per_round=2, partition="iid")
host_of(Opening(e, RamStore())).describe([0, 1])
STRATEGIES[e.own.plug_in]
"""


def test_a_federation_that_trains_networks_loads_no_other_family(tmp_path):
    x, y = np.arange(160, dtype=np.float32).reshape(40, 4), np.arange(40) % 2
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    found = loaded(HOSTING, tmp_path / "rows.npz")
    assert "engram.client.hosts.local" in found
    assert "engram.strategies.running.network_strategy" in found
    parts = ("host", "strategy", "report")
    assert not {name for name in found if name.split(".")[-1].removeprefix("bandit_") in parts}
    settings = {"engram.bandits", "engram.bandits.federation", "engram.bandits.federation.meta_ban"}
    found -= settings
    assert not {name for name in found if name.startswith(("engram.bandits", "engram.online"))}


CASES = 4574  # of `make test`: this number only falls


def test_the_quick_tests_are_few_and_no_table_is_large(request):
    """Of what this session has collected, which is all of it where all tests run."""
    quick = [
        item.nodeid.partition("[")[0]
        for item in request.session.items
        if not {"full", "processes"} & {mark.name for mark in item.iter_markers()}
    ]
    assert len(quick) <= CASES
    large = {name: count for name, count in Counter(quick).items() if count > 60}
    assert not large
