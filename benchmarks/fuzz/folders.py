"""Cases with corrupted folders: runs, checkpoints, memories, nodes and servers."""

import contextlib
import functools
import io
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Final

import torch

from benchmarks.fuzz.commands import SMALL, invoke
from benchmarks.fuzz.spoil import spoil_bytes, spoil_file
from client.memory import DiskStore, RamStore
from client.replies import Replies
from client.sealed import read_key
from federation.credentials import read_node, read_server
from federation.experiment import Experiment, read_by
from federation.tensors import tensors_to_bytes
from server.identity import init_federation
from server.record import RunRecord
from server.registration import names
from simulations.cli import app
from simulations.engine import simulate

_METHODS: Final = ("fedavg", "pfedme", "molar", "molar-bandit", "meta-ban", "compare")
_SMALL: Final = SMALL | {
    "num-rounds": 2,
    "initial-batch-size": 2,
    "adapt-steps": 1,
    "checkpoint-every": 1,
}
_DATASETS: Final = dict.fromkeys(("molar", "molar-bandit"), "sparse-linear") | {
    "meta-ban": "linear-groups"
}
_OWN: Final = {"meta-ban": {"meta-steps": 1, "user-steps": 1}}
_KEY: Final = b"k" * 32
_TRAINING: Final = "0123456789abcdef"


def quick_experiment(method: str) -> Experiment:
    """Returns an experiment of two rounds and four clients."""
    named = {"method": method, "dataset": _DATASETS.get(method, "digits")}
    return Experiment.from_config(read_by(method, _SMALL) | _OWN.get(method, {}) | named)


@functools.cache
def prepare() -> Path:
    """Makes intact folders of each kind, once; cases corrupt copies of them."""
    root = Path(tempfile.mkdtemp(prefix="engram-fuzz-whole-"))
    for method in _METHODS[:-1]:
        simulate(quick_experiment(method), root / method)
    _compare(root / "compare")
    init_federation(
        root / "fed", clients=2, hosts=["localhost"], superlink="localhost:9092", days=9
    )
    for name, key in (("plain", None), ("encrypted", _KEY)):
        store = DiskStore(root / name / "state" / "memory" / _TRAINING, key=key)
        for number in (1, 2):
            tensors = {"a": torch.ones(3), "b": torch.zeros(2, 2)}
            store.save(1, tensors, server_round=number, durable=0)
    (root / "key").write_text(_KEY.hex())
    (root / "key").chmod(0o600)
    return root


def _compare(folder: Path) -> None:
    sets = [
        word
        for key, given in read_by("fedavg", _SMALL).items()
        for word in ("--set", f"{key}={given}")
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        words = ["compare", "fedavg", "--seeds", "1", *sets, "--out", str(folder)]
        app(words, standalone_mode=False)


def _spoil_one(rng: random.Random, folder: Path, pattern: str = "*") -> None:
    files = sorted(
        path for path in folder.rglob(pattern) if path.is_file() and path.suffix != ".png"
    )
    for path in rng.sample(files, min(len(files), rng.choice((1, 1, 2)))):
        spoil_file(rng, path)


def run_folder(rng: random.Random, here: Path) -> None:
    """Folders of runs, which are shown and resumed."""
    method = rng.choice(_METHODS)
    shutil.copytree(prepare() / method, here / "run")
    _spoil_one(rng, here / "run", rng.choice(("*", "*.json", "*.jsonl", "metrics.jsonl")))
    words = [
        ["show", "run"],
        ["show", "run", "--json"],
        ["status", "run"],
        ["status", "run", "--json"],
        ["run", "--resume", "run"],
        ["run", "--resume", "run", "--set", "num-rounds=3"],
        ["compare", "--resume", "run"],
        ["reproduce", "sinewave", "--resume", "run"],
    ]
    invoke(*rng.choice(words))


def checkpoint(rng: random.Random, here: Path) -> None:
    """Checkpoints from which a run is resumed."""
    method = rng.choice(_METHODS[:3])
    shutil.copytree(prepare() / method, here / "run")
    newest = max(RunRecord.open(here / "run").checkpoints().items())[1]
    if rng.random() < 0.3:
        (newest / "manifest.json").unlink()
    _spoil_one(rng, rng.choice((newest, newest.parent)))
    more = {"resume": str(here / "run"), "num-rounds": 3}
    e = quick_experiment(method)
    if rng.random() < 0.5:
        RunRecord.open(here / "run").load_checkpoint()
    elif method != "molar":
        simulate(e.from_config(e.to_config() | more), here / "run")


def memory(rng: random.Random, here: Path) -> None:
    """Clients' memories, read by nodes and by commands."""
    kind, key = rng.choice(
        (("plain", None), ("plain", _KEY), ("encrypted", _KEY), ("encrypted", None))
    )
    shutil.copytree(prepare() / kind, here / "node")
    shutil.copy(prepare() / "key", here / "key")
    folder = here / "node" / "state" / "memory" / _TRAINING
    if rng.random() < 0.8:
        _spoil_one(rng, folder)
    if rng.random() < 0.2:
        spoil_file(rng, here / "key")
    if rng.random() < 0.3:
        (folder / rng.choice(("client-x", "client-", "client-1/round-x.memory", "x" * 200))).mkdir()
    way = rng.randrange(7)
    where = ["node", _TRAINING, "1"]
    given = ["--memory-key", "key"] if key else []
    if way == 0:
        invoke("memory", "list", "node", *rng.choice(([], ["--json"])))
    elif way == 1:
        invoke("memory", "show", *where, *given)
    elif way == 2:
        invoke("memory", "export", *where, "out", *given)
    elif way == 3:
        invoke(
            "memory", *rng.choice((["encrypt", "node", "--memory-key", "key"], ["forget", "node"]))
        )
    elif way == 4:
        RamStore().restore(spoil_bytes(rng, tensors_to_bytes({"1/1/a": torch.ones(3)})))
    elif way == 5:
        path = here / "reply"
        path.write_bytes(spoil_bytes(rng, b"engram sealed 1\np" + b"x" * 120))
        Replies(here, key=key).find(None)  # type: ignore[arg-type]  # the message is not reached
    else:
        read_key(here / "key")
        store = DiskStore(folder, key=key)
        store.load(1, {"a": torch.ones(3), "b": torch.zeros(2, 2)}, before=rng.choice((2, 3)))
        store.save(1, {"a": torch.ones(3)}, server_round=3, durable=1)


def federation(rng: random.Random, here: Path) -> None:
    """Folders of nodes and of servers."""
    shutil.copytree(prepare() / "fed", here / "fed")
    server, node = here / "fed" / "server", here / "fed" / "client-0"
    (server / "clients" / "client-0.node").write_text("123")
    place = rng.choice((server, node))
    _spoil_one(rng, place, rng.choice(("*.toml", "*")))
    if rng.random() < 0.3:
        path = place / ("federation.toml" if place == server else "node.toml")
        if path.is_file() and not path.is_symlink():
            literal = rng.choice(
                ('"x:y"', "9" * 5000, "[1]", "-1", "true", "1.5", json.dumps("x" * 10**5))
            )
            with path.open("a") as file:
                file.write(
                    f"\n{rng.choice(('superlink', 'clients', 'insecure', 'x'))} = {literal}\n"
                )
    if place == server:
        names(server)
        read_server(server)
        if rng.random() < 0.3:
            invoke(
                "init-federation",
                "fed",
                *rng.choice((["--renew"], ["--add-client"], ["--clients", "2"])),
            )
    else:
        read_node(node)
