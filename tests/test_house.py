"""The shape of the house: which room may import which, and whose the names are."""

import ast
import importlib.metadata
import re
import shlex
import tomllib
from itertools import chain

import pytest

from federation.experiment import Experiment
from federation.fingerprint import ROOMS, source_root

ROOT = source_root()
ARROWS = {
    "engram": {"engram"},
    "federation": {"federation", "engram"},
    "client": {"client", "federation", "engram"},
    "strategies": {"strategies", "federation", "engram"},
    "server": {"server", "strategies", "federation", "engram"},
    "simulations": {*ROOMS, "simulations"},
    "benchmarks": {*ROOMS, "simulations", "benchmarks"},
}
SCIENCE = {"torch", "numpy", "scipy", "sklearn", "numba"}
EXTRAS = {"engram/molar/high_dim.py": {"cvxpy"}}  # `pip install -c constraints.txt -e '.[convex]'`
INTERNAL = re.compile(r"flwr\.(?!app$|serverapp$|serverapp\.strategy$|clientapp$)")


def imports(path):
    """Yields the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield str(node.module)


def modules(room):
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", ARROWS)
def test_rooms_import_along_the_arrows_only(room):
    for path in modules(room):
        used = {name.split(".")[0] for name in imports(path)} & ARROWS.keys()
        assert used <= ARROWS[room], f"{path} imports {sorted(used - ARROWS[room])}"


def test_the_science_imports_science_only():
    standard = {"abc", "collections", "copy", "dataclasses", "functools", "itertools", "math"}
    standard |= {"reprlib"}  # brief.py: values in messages
    standard |= {"importlib", "pathlib", "sys"}  # rooms.py, __main__.py: whose our packages are
    standard |= {
        "typing",
        "warnings",
    }  # families.py: a library's solver says so where it has failed
    for path in modules("engram"):
        used = {name.split(".")[0] for name in imports(path)}
        extra = EXTRAS.get(path.relative_to(ROOT).as_posix(), set())
        assert used <= SCIENCE | standard | extra | {"engram"}, path


def test_internals_of_flower_are_imported_in_one_module():
    for path in (path for room in ARROWS for path in modules(room)):
        internal = [name for name in imports(path) if INTERNAL.match(name)]
        assert not internal or path == ROOT / "federation" / "flower.py", (path, internal)


def test_no_other_distribution_owns_our_names():
    owners = importlib.metadata.packages_distributions()
    for name in ARROWS:
        assert set(owners.get(name, ["engram"])) == {"engram"}, name


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


# --- The README ------------------------------------------------------------------------------


def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", readme(), flags=re.DOTALL)


def test_the_readmes_files_are_there():
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", readme()):
        assert (ROOT / link).exists(), link
    for path in re.findall(r"`([a-z_]+/[a-z_/.]*)`", readme()):
        if path.split("/")[0] in {*ARROWS, "tests", "docker", "benchmarks"}:
            assert (ROOT / path).exists(), path


def test_the_readmes_python_runs(tmp_path):
    code = blocks("python")
    assert code
    for block in code:
        exec(compile(block, "README.md", "exec"), {})


def shortened(words, tmp_path, rng):
    """Returns a command that reproduces an experiment, so that it takes seconds; others as is."""
    import numpy as np
    import pandas as pd

    from tests.support import write_npz

    if words[:2] == ["reproduce", "molar-table"]:
        words += ["--splits", "1"]
    elif words[:2] == ["reproduce", "molar-regression"]:
        pytest.skip("runs, smaller, in tests/simulations/test_molar_regression.py")
    elif words[:2] == ["reproduce", "molar-bandit"]:
        words += ["--horizon", "64", "--trials", "1"]
    elif words[:2] == ["reproduce", "meta-ban"]:
        rated = {"user": np.repeat(range(60), 10), "item": np.tile(range(20), 30)}
        pd.DataFrame(rated | {"rating": rng.integers(1, 6, 600)}).to_csv(
            tmp_path / "rated.csv", index=False
        )
        words = ["rated.csv" if word == "mine.csv" else word for word in words]
        words += ["--rounds", "8", "--seeds", "1", "--processes", "1"]
        words += [word for name in ("meta-ban", "random") for word in ("--method", name)]
    elif words[:2] == ["reproduce", "universal"]:
        words += ["--horizon", "20", "--seeds", "1", "--processes", "1"]
    elif words[0] == "reproduce" and words[1] != "universal-stream":
        images = rng.integers(0, 256, (700 * 6, 28, 28), dtype=np.uint8)
        (tmp_path / "data").mkdir()
        write_npz(tmp_path / "data" / "omniglot28.npz", x=images, y=np.arange(4200) % 700)
        words += ["--iterations", "5", "--seeds", "1", "--processes", "1"]
    return words


@pytest.mark.parametrize(
    "line", [line for text in blocks("sh") for line in text.strip().splitlines()], ids=str
)
def test_the_readmes_commands_run(line, tmp_path, monkeypatch, capsys):
    from simulations.__main__ import main
    from tests.support import write_npz

    command, *words = shlex.split(line.split("#")[0])
    if command == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert words[0] in targets
    elif command == "flwr":  # runs for real in tests/simulations/test_ray.py
        assert words[:2] == ["run", "."]
        settings = tomllib.loads("\n".join(words[3].split()) if words[2:] else "")
        Experiment.from_config(settings)
    elif command == "engram":
        import numpy as np
        import pandas as pd

        (tmp_path / "simulations").symlink_to(ROOT / "simulations")
        rng = np.random.default_rng(0)
        x, y, task = rng.normal(size=(600, 3)), rng.integers(0, 2, 600), np.repeat(range(20), 30)
        write_npz(tmp_path / "mine.npz", x=x, y=y, task=task)
        if "show" in words or "--resume" in words:
            first = ["engram", "run", "--set", "num-rounds=1", "--out", "runs/mine"]
            monkeypatch.setattr("sys.argv", first)
            main()
        if words[0] in ("run", "compare") and "--help" not in words:
            words += ["--set", "num-rounds=2"]
        data = pd.DataFrame(x, columns=["age", "dose", "weight"])
        data = data.assign(patient=np.arange(600), hospital=task, died=y)
        data["pressure"] = x @ [1, 2, 3] + rng.normal(size=600)
        data.to_csv(tmp_path / "mine.csv", index=False)
        offers = pd.DataFrame(rng.random((600, 2)), columns=["price", "size"])
        offers.assign(user=task, bought=y).to_csv(tmp_path / "offers.csv", index=False)
        words = shortened(words, tmp_path, rng)
        monkeypatch.setattr("sys.argv", ["engram", *words])
        main()
        assert capsys.readouterr().out
    else:
        assert command in {"git", "cd", "source"}, line
