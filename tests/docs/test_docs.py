"""README and docs/: every command and every example runs, and what they name is there."""

import importlib
import importlib.util
import itertools
import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from fastapi.testclient import TestClient
from flwr.common.config import parse_config_args
from PIL import Image

import engram
from engram.core.contract import Contract
from engram.core.method import Context
from engram.core.method_shapes import WITHOUT_DATA, shapes_of
from engram.core.personal_parameters import build
from engram.core.slots import has_common, has_tuned
from engram.networks.vision import torchvision
from engram.scoring.score_columns import COMMON, TUNED
from engram.settings.base import SharedSettings
from engram.settings.experiment import Experiment
from engram.settings.families import METHODS
from engram.settings.fingerprint import source_root
from engram.settings.network import NetworkMethod
from engram.settings.settings_files import read_settings
from engram.sites.policy import USUAL, read_policy
from tests.methods.problem import NETWORK
from tests.samples import entry
from tests.source import ROOMS
from tests.support import write_npz

ROOT = source_root()
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
SITE = sorted([*(ROOT / "docs").rglob("*.md"), *TUTORIALS])
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *SITE]
_spec = importlib.util.spec_from_file_location("methods_tool", ROOT / "docs/tools/methods.py")
TOOL = importlib.util.module_from_spec(_spec)  # what completes the pages of methods
_spec.loader.exec_module(TOOL)
RULE = '@engram.method("sign-sgd"'  # the example of a plug-in
ROOT_FOLDERS = {*ROOMS, "benchmarks", "docker", "docs", "tests"}


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def text_of(page):
    """Returns a page as Markdown: of a tutorial, what its cells of text say."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        return text
    cells = re.findall(r"^# %% \[markdown\]\n((?:#.*\n)+)", text, flags=re.MULTILINE)
    return "\n".join(re.sub(r"^# ?", "", cell, flags=re.MULTILINE) for cell in cells)


def commands_of(tutorial):
    """Returns the commands of a tutorial's cells of shell, and those that it has in Python."""
    text = tutorial.read_text(encoding="utf-8")
    cells = re.findall(r'^# %%.*language="bash"\n((?:# .*\n)+)', text, flags=re.MULTILINE)
    lines = [line.removeprefix("# ") for cell in cells for line in cell.splitlines()]
    return [line.removeprefix("engram ") for line in lines]


def blocks(page, language):
    text = text_of(page)
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def examples(language):
    """Returns each block of a language once, and a name for it, of its page."""
    found = {}
    for page in PAGES:
        for number, block in enumerate(blocks(page, language), start=1):
            found.setdefault(block, f"{name_of(page)}-{number}")
    return found


def sample_of(examples):
    """Returns parameters of examples, all but every eighth of which run in full only."""
    return [
        pytest.param(block, id=name, marks=pytest.mark.full if i % 8 else ())
        for i, (block, name) in enumerate(examples.items())
    ]


def commands():
    """Returns each command once, without its comment."""
    lines = [line for page in PAGES for text in blocks(page, "sh") for line in text.splitlines()]
    return list(dict.fromkeys(line.split("#")[0].strip() for line in lines if line.strip()))


def headings(page):
    """Returns the anchors of a page, as the site makes them."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.M)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", t).strip().lower()) for t in titles}


# --- What pages name --------------------------------------------------------------------------


def test_what_pages_name_is_there_and_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
    for page in PAGES:
        with entry(name_of(page)):
            check_names(page)


def check_names(page):
    text = text_of(page)
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link
    for path in re.findall(r"`([a-z_]+/[\w/.-]*)`", text):
        if path.split("/")[0] in ROOT_FOLDERS:
            assert (ROOT / path).exists(), path
    for module in re.findall(r"^::: ([\w.]+)$", text, flags=re.MULTILINE):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), module
    for module in re.findall(r"`(engram(?:\.\w+)+)`", text):
        first, *rest = module.split(".")
        path = ROOT / first
        while rest and ((path / rest[0]).is_dir() or (path / f"{rest[0]}.py").is_file()):
            path /= rest.pop(0)
        there = rest and rf"^(class |def |    from [\w.]+ import \w+ as )?{rest[0]}\b"
        assert not rest or re.search(there, source(path), re.MULTILINE), module


def source(path):
    file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    return file.read_text(encoding="utf-8")


def test_every_page_is_in_the_sites_navigation():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r": ([\w/-]+\.(?:md|py))$", config, flags=re.MULTILINE)
    assert sorted(named) == sorted(path.relative_to(ROOT / "docs").as_posix() for path in SITE)


# --- What pages say of methods ------------------------------------------------------------------


def test_pages_list_every_method():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## Methods")[2].partition("\n\n[")[0]
    assert sorted(re.findall(r"`([\w-]+)`", table)) == sorted(METHODS)
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    which = page.partition("## When to use which")[2].partition("\n## ")[0]
    assert {name for name in METHODS if f"`{name}`" not in which} == set()
    assert {path.stem for path in (ROOT / "docs" / "methods").iterdir()} == set(METHODS)


def test_a_methods_page_has_its_rule_its_settings_and_the_columns_of_its_models():
    for method, own in METHODS.items():
        with entry(method):
            page = text_of(ROOT / "docs" / "methods" / f"{method}.md")
            for part in (f"# {method}\n", "## Update rule\n", "## When to use it\n", "## Try it\n"):
                assert part in page
            assert listed_settings(TOOL.settings(method)) == written(own.defaults())
            assert own.source in TOOL.described(method)
            if issubclass(own, NetworkMethod):
                check_columns(method, own)


def check_columns(method, own):
    network = NETWORK._replace(running=frozenset({"dense0.bias"} if own.personal == "norm" else ()))
    made = build(own().settings, Context(network, WITHOUT_DATA, 3, 4, torch.Generator))
    shapes = shapes_of(Contract(method, made, network.initial))
    columns = ["accuracy"]
    columns += [f"accuracy{COMMON}"] if has_common(shapes.common, shapes.served) else []
    columns += [f"accuracy{TUNED}"] if has_tuned(shapes.served) else []
    page = text_of(ROOT / "docs" / "methods" / f"{method}.md")
    text = page.partition("## Served model\n")[2].partition("\n## ")[0]
    assert re.findall(r"`(accuracy[\w-]*)`", text.partition("Columns:")[2]) == columns


def test_a_methods_page_shows_what_results_have_of_it():
    results = text_of(ROOT / "docs" / "results.md")
    shown = TOOL.measured("ditto", results)
    rows = set(re.findall(r"^\| `ditto` \|.*$", results, re.MULTILINE))
    assert rows
    assert rows <= set(shown.splitlines())
    assert "`apfl`" not in shown
    assert not TOOL.measured("meta-ban", results)  # its page links the section


def test_the_shared_settings_are_listed_with_their_defaults():
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert listed_settings(TOOL.shared_settings(text)) == written(SharedSettings.defaults())


def listed_settings(text):
    """Returns the settings and defaults that tables have."""
    return dict(re.findall(r"^\| `([\w-]+)` \| `([^`]+)` \|", text, flags=re.MULTILINE))


def written(defaults):
    return {key: json.dumps(value) for key, value in defaults.items()}


# --- Examples -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize("block", sample_of(examples("python")))
def test_the_python_runs(block, request, tmp_path, monkeypatch):
    if re.search("torchvision|transformers", block):
        torchvision()  # which fails without this beside a torch for CPUs
    if "(__name__" in block:  # a module's, and no script's
        (tmp_path / "mine.py").write_text(block)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.import_module("mine")
        return
    exec(compile(block, request.node.callspec.id, "exec"), {"__name__": "__main__"})


POLICY = "approval"  # a rule of a site's policy, which is no setting of a run


def test_the_settings_are_valid(tmp_path):
    path = tmp_path / "settings.toml"
    for block, name in examples("toml").items():
        with entry(name):
            path.write_text(block)
            if POLICY in {line.partition(" ")[0] for line in block.splitlines()}:
                assert read_policy(path) != USUAL
            else:
                Experiment.from_config(read_settings(path))


@pytest.fixture(scope="module")
def own_data(tmp_path_factory):
    """A folder with the files that the commands name."""
    folder = tmp_path_factory.mktemp("own")
    write_own_data(folder)
    return folder


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize("line", sample_of({line: line for line in commands()}))
def test_the_commands_run(line, own_data, tmp_path, monkeypatch, capsys):
    command, *words = shlex.split(line)
    if command == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert set(words) <= set(targets)
    elif command == "flwr":  # runs for real in tests/simulations/test_ray.py
        assert words[:2] == ["run", "."]
        Experiment.from_run_config(parse_config_args(words[3:]))
    elif words[0] == "federation":  # runs for real in tests/processes
        parse(words)
    else:
        assert command == "engram", line
        for path in own_data.iterdir():
            (tmp_path / path.name).symlink_to(path)
        if words[0] in ("show", "runs", "report", "track") or "--resume" in words:
            run_engram(monkeypatch, "run", "--set", "num-rounds=1", "--out", "runs/mine")
        for before in needed_by(words):
            run_engram(monkeypatch, *before)
        run_engram(monkeypatch, *shortened(words, tmp_path))
        assert capsys.readouterr().out


def test_commands_for_other_machines_are_valid():
    shown = "\n".join(block for page in PAGES for block in blocks(page, "console"))
    lines = re.findall(r"^\$ engram (.*)$", shown, re.MULTILINE)
    lines += [line for page in TUTORIALS for line in commands_of(page)]
    lines += re.findall("`engram (.+?)`", text_of(ROOT / "docs" / "papers.md"))
    for line in lines:
        with entry(line):
            parse(shlex.split(line))


def test_a_tutorial_says_what_it_is_about_and_can_be_read():
    """It runs when the site is built, where a cell that fails is a failure."""
    for tutorial in TUTORIALS:
        with entry(tutorial.name):
            source = tutorial.read_text(encoding="utf-8")
            compile(source, tutorial.name, "exec")
            assert source.startswith("# %% [markdown]\n# # ")
            assert re.findall(r"\]\(\.\./[\w-]+\.md", source), "no page to go on with"


def test_the_server_answers_with_probabilities(tmp_path, monkeypatch, own_data):
    (server,) = blocks(ROOT / "docs" / "models.md", "py")
    assert len([line for line in server.splitlines() if line]) <= 10
    for path in own_data.iterdir():
        (tmp_path / path.name).symlink_to(path)
    run_engram(monkeypatch, *RUN)
    run_engram(monkeypatch, *EXPORT.split(), "--format", "onnx", "--out", "served")
    found = {"__name__": "serve"}
    exec(compile(server, "serve.py", "exec"), found)
    client = TestClient(found["app"])
    answer = client.post("/predict", json=[[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]]).json()
    run_engram(monkeypatch, *EXPORT.split())
    x = torch.tensor([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]])
    expected = engram.load_model("client-3-model")(x).softmax(-1)
    np.testing.assert_allclose(answer, expected.detach(), atol=1e-5)


def parse(words):
    """Reads a command as `engram` would, and does not run it."""
    import typer

    from engram.cli.cli import app

    command, rest = typer.main.get_command(app), list(words)
    while hasattr(command, "commands"):  # a group, which imports what it resolves
        _, command, rest = command.resolve_command(typer.Context(command), rest)
    command.make_context(words[0], list(rest))  # which empties the list
    sets = [rest[i + 1] for i, word in enumerate(rest) if word == "--set"]
    if command.name in ("run", "federation"):
        settings = dict(text.split("=", 1) for text in sets)
        Experiment.from_config(settings | ({"method": rest[0]} if rest[0] in METHODS else {}))


def run_engram(monkeypatch, *words):
    from engram.cli.__main__ import main

    monkeypatch.setattr("sys.argv", ["engram", *words])
    main()


def write_own_data(folder):
    rng = np.random.default_rng(0)
    x, y, task = rng.normal(size=(600, 3)), rng.integers(0, 2, 600), np.repeat(range(20), 30)
    (folder / "simulations").symlink_to(ROOT / "simulations")
    (plug_in,) = (text for text in blocks(ROOT / "docs" / "extending.md", "python") if RULE in text)
    assert plug_in.count("\n") <= 32
    (folder / "sign_sgd.py").write_text(plug_in)
    write_npz(folder / "mine.npz", x=x, y=y, task=task)
    (folder / "large").mkdir()
    for name, array in {"x": x, "y": y, "task": task}.items():
        np.save(folder / "large" / f"{name}.npy", array)
    for client, kind, number in itertools.product(range(10), ("cat", "dog"), range(15)):
        place = folder / "photos" / f"camera{client}" / kind
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (12, 12), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    pixels = rng.integers(256, size=(300, 12, 12), dtype=np.uint8)
    drawings = {
        "image": [*map(Image.fromarray, pixels)],
        "writer_id": [f"f{row // 30:04}" for row in range(300)],
        "hsf_id": [0] * 300,
        "character": [row % 3 for row in range(300)],
    }
    Dataset.from_dict(drawings).to_parquet(folder / "drawings.parquet")
    data = pd.DataFrame(x, columns=["age", "dose", "weight"])
    data = data.assign(patient=np.arange(600), hospital=task, died=y)
    data["pressure"] = x @ [1, 2, 3] + rng.normal(size=600)
    data.to_csv(folder / "mine.csv", index=False)
    for file, target in (("columns.toml", "died"), ("pressure.toml", "pressure")):
        roles = {"patient": 'kind = "identifier"', "hospital": 'role = "client"'}
        roles[target] = 'role = "target"'
        lines = (f"[columns.{name}]\n{role}\n" for name, role in roles.items())
        (folder / file).write_text("".join(lines))
    new = data[data["hospital"] == 4].drop(columns="hospital")
    new.to_csv(folder / "new_hospital.csv", index=False)
    new.drop(columns=["died", "pressure"]).to_csv(folder / "rows.csv", index=False)
    topics = ["bank and market", "coach and goal"]
    titles = [f"News of {topics[k]} {number}" for number, k in enumerate(y)]
    news = pd.DataFrame({"desk": task, "title": titles, "topic": y})
    news.to_csv(folder / "news.csv", index=False)
    offers = pd.DataFrame(rng.random((600, 2)), columns=["price", "size"])
    offers.assign(user=task, bought=y).to_csv(folder / "offers.csv", index=False)


TABLE = "dataset=csv:mine.csv target-column=died task-column=hospital input-columns=age,dose,weight"
SETS = f"{TABLE} partition=natural num-clients=20 num-rounds=2".split()
RUN = ["run", "fedper", *(word for each in SETS for word in ("--set", each)), "--out", "runs/mine"]
EXPORT, ADAPT = "export mine --client 3", "adapt mine --data new_hospital.csv --out new-model"


def needed_by(words):
    """Returns the commands before one that takes a run or a model."""
    begun = {"export": [], "adapt": [], "audit": [], "predict": [EXPORT.split(), ADAPT.split()]}
    return [RUN, *begun[words[0]]] if words[0] in begun else []


def shortened(words, folder):
    """Returns a command that takes seconds: fewer rounds, seeds or iterations of the same."""
    if "--help" in words:
        return words
    if words[0] == "--plugin":
        return [*words[:2], *shortened(words[2:], folder)]
    if words[0] in ("run", "compare", "tune"):
        here = ["--processes", "1"] if {"tune", "--tuned"} & set(words) else []
        words = shlex.split(re.sub(r"--seeds \d+", "--seeds 1", shlex.join(words)))
        # MOLAR has one round, which no setting says.
        return [*words, *here, *([] if "molar" in words else ["--set", "num-rounds=2"])]
    if words[0] == "benchmark":
        return [*words, "--trials", "1", "--seeds", "1", "--set", "num-rounds=2"]
    return reproduction(words, folder) if words[0] == "reproduce" else words


SHORTER = {
    "molar-table": ["--splits", "1"],
    "molar-bandit": ["--horizon", "64", "--trials", "1"],
    "universal": ["--horizon", "20", "--seeds", "1", "--processes", "1"],
    "universal-stream": [],
}


def reproduction(words, folder):
    """Returns a shorter command for one of the papers' experiments."""
    study, rng = words[1], np.random.default_rng(0)
    one = ["--seeds", "1", "--processes", "1"]
    if study == "molar-regression":
        pytest.skip("runs, smaller, in tests/tables/studies/test_regression.py")
    if study == "molar-table" and "mine.csv" in words:
        table = pd.read_csv(folder / "mine.csv")
        table[table["hospital"] < 3].to_csv(folder / "few.csv", index=False)
        words = ["few.csv" if word == "mine.csv" else word for word in words]
    if study in SHORTER:
        return [*words, *SHORTER[study]]
    if study == "meta-ban":
        rated = {"user": np.repeat(range(60), 10), "item": np.tile(range(20), 30)}
        table = pd.DataFrame(rated | {"rating": rng.integers(1, 6, 600)})
        table.to_csv(folder / "rated.csv", index=False)
        words = ["rated.csv" if word == "mine.csv" else word for word in words]
        chosen = [word for name in ("meta-ban", "random") for word in ("--method", name)]
        return [*words, "--rounds", "8", *one, *chosen]
    if study == "federated":
        images = rng.integers(0, 256, (33_000, 1, 4), dtype=np.uint8)
        dataset = write_npz(folder / "images.npz", x=images, y=np.arange(33_000) % 10)
        return [*words, "--dataset", dataset, "--rounds", "2", *one]
    images = rng.integers(0, 256, (700 * 6, 28, 28), dtype=np.uint8)
    (folder / "data").mkdir()
    write_npz(folder / "data" / "omniglot28.npz", x=images, y=np.arange(4200) % 700)
    return [*words, "--iterations", "5", *one]
