"""Apps with a loop of their own in Flower's processes: on Ray, and on a stock server's nodes."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

from engram.client.disk_memory import DiskStore
from engram.runs.checkpoints import checkpoints_in
from engram.settings.fingerprint import source_root
from tests.flower.support import gap
from tests.processes.support import wait_for
from tests.processes.test_stock_flower import BIN, Stock
from tests.processes.test_stock_flower import stock as stock  # noqa: PLC0414 - a fixture
from tests.simulations.superlink import SuperLink

pytestmark = pytest.mark.processes

PAGE = source_root() / "docs" / "coming-from.md"


def project(engram, folder, name="hospitals"):
    """Makes a Flower app, as a user would; returns its folder."""
    status, _, err = engram("new", "--flower", name)
    assert status == 0, err
    return Path(name).rename(folder / name).resolve()


def change(path, **texts):
    """Replaces texts of a file, each of which must be there."""
    text = path.read_text()
    for old, new in texts.values():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_the_manual_shows_every_line_that_an_app_of_flowers_gets(engram, tmp_path):
    folder = project(engram, tmp_path)
    (changes,) = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.M)
    assert len(re.findall(r"^\+ ", changes, re.M)) <= 6
    for file, lines in re.findall(r"^--- (\w+\.py)\n(.*?)(?=^--- |\Z)", changes, re.DOTALL | re.M):
        path = folder / folder.name / file
        text = path.read_text()
        for removed, added in re.findall(r"((?:^- .*\n)*)((?:^\+ .*\n)+)", lines, re.M):
            old, new = (re.sub(r"^[-+] ", "", part, flags=re.M) for part in (added, removed))
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        assert "engram" not in text
        path.write_text(text)


def scores(printed):
    """Returns the accuracy of each round, as the app prints it."""
    (line,) = re.findall(r"accuracy by round: (\{.*\})", printed)
    return [float(value) for value in re.findall(r"'eval_acc': ([\d.]+)", line)]


def test_an_app_of_flowers_is_personalized_on_ray(engram, tmp_path):
    folder = project(engram, tmp_path)
    with SuperLink(tmp_path) as link:
        build = [BIN / "flwr", "build"]
        subprocess.run(build, cwd=folder, env=link.env, check=True, capture_output=True)
        config = f"num-server-rounds=6 out='{tmp_path}/personal.pt'"
        printed = link.run(folder, config, nodes=20)
    assert torch.load(tmp_path / "personal.pt").keys() == NAMES, printed
    found = scores(printed)
    assert len(found) == 6
    assert found[-1] > 0.8  # about 0.9; the common model that the app without Engram has, 0.7


NAMES = {
    f"{layer}.{kind}" for layer in ("body.0.0", "body.1", "head") for kind in ("weight", "bias")
}
"""Parameters of the template's network."""


def test_a_node_that_is_killed_and_a_run_that_ends_go_on(engram, tmp_path, stock: Stock):
    folder = project(engram, tmp_path)
    memory, server = tmp_path / "memory", tmp_path / "server"
    own = f"mods=[Mod(Site(memory={str(memory)!r}))]"
    change(
        folder / "hospitals" / "client_app.py",
        mod=("mods=[mod]", own),
        names=("import batches, mod", "import Mod, Site, batches"),
    )
    words = f"resume={str(server)!r}, min_train_nodes=3, min_available_nodes=3, "
    change(
        folder / "hospitals" / "server_app.py",
        strategy=("Ditto(global_model, ", f"Ditto(global_model, {words}"),
    )

    def newest():
        stock.look()
        return max(checkpoints_in(server), default=0)

    def begin(rounds, name):
        out = json.dumps(str(tmp_path / name))
        config = f"num-server-rounds={rounds} fraction-evaluate=0.0 out={out}"
        stock.flwr("run", str(folder), "stock", "--run-config", config)

    try:
        begin(3, "one.pt")
        wait_for(lambda: newest() >= 1, "a round")
        stock.kill("node-1")
        stock.supernode(1)
        wait_for(lambda: newest() == 3 and (tmp_path / "one.pt").is_file(), "the first run")
        (training,) = memory.iterdir()
        versions = {c: max(DiskStore(training).versions(c)) for c in range(3)}
        assert versions[0] == versions[2] == 3
        assert versions[1] >= 2  # it may have missed a round
        begin(4, "two.pt")
        wait_for(lambda: newest() == 4 and (tmp_path / "two.pt").is_file(), "the second run")
    except AssertionError as error:
        raise AssertionError(stock.said()) from error
    assert [*memory.iterdir()] == [training]  # the same memories
    assert {max(DiskStore(training).versions(c)) for c in range(3)} == {4}
    assert "has lost its memory" not in stock.said()
    one, two = (torch.load(tmp_path / f"{name}.pt") for name in ("one", "two"))
    assert 0 < gap(one, two) < 1
