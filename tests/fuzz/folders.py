"""Cases with corrupted folders: runs, comparisons, searches, models, memories, federations."""

import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from engram.cli.__main__ import main
from engram.client.disk_memory import DiskStore
from engram.client.encrypted_file import read_key
from engram.client.memory import RamStore
from engram.link.credentials import read_node, read_server
from engram.link.server.identity import init_federation
from engram.link.server.registration import roll
from engram.settings.experiment import Experiment, read_by
from engram.simulations.engine import simulate
from engram.wire.checksums import checked, summed
from engram.wire.tensors import tensors_to_bytes
from tests.fuzz.spoil import spoil_bytes, spoil_file, spoil_json, text

SMALL: Final[dict[str, Any]] = {
    **dict.fromkeys(("local-steps", "adapt-steps", "checkpoint-every"), 1),
    **dict.fromkeys(("meta-steps", "user-steps"), 1),
    **dict.fromkeys(("clients-per-round", "num-rounds", "batch-size"), 2),
    **dict.fromkeys(("initial-batch-size", "adapt-shots"), 2),
    **dict.fromkeys(("num-clients", "rows-per-class", "test-rows-per-class"), 4),
    "hidden": "4",
}
"""Settings with which a run takes a moment, for the methods that read them."""

RUNS: Final = ("fedavg", "pfedme", "fedem", "molar", "molar-bandit", "meta-ban")
_TABLES: Final = {"molar": "sparse-linear", "molar-bandit": "sparse-linear"}
_KEY: Final = b"k" * 32
_TRAINING: Final = "0123456789abcdef"
_MODELS: Final = (
    ("model", "fedavg", ["--client", "0"]),
    ("model-common", "fedavg", ["--common"]),
    ("model-onnx", "pfedme", ["--client", "1", "--format", "onnx"]),
    ("model-mixture", "fedem", ["--client", "0"]),
    ("model-table", "molar", ["--client", "0"]),
)
WHOLE: Final = Path(tempfile.gettempdir()) / f"engram-fuzz-whole-{os.getpid()}"
"""The folder with intact folders of each kind, which forked processes find here, too."""


def small(method: str) -> dict[str, Any]:
    """Returns a method's settings with which a run takes a moment."""
    usual = "linear-groups" if method == "meta-ban" else _TABLES.get(method, "digits")
    return read_by(method, SMALL) | {"dataset": usual}


def quick_experiment(method: str) -> Experiment:
    """Returns an experiment of two rounds and four clients."""
    return Experiment.from_config(small(method) | {"method": method})


def sets(settings: dict[str, Any]) -> list[str]:
    """Returns settings as words of a command."""
    return [word for key, given in settings.items() for word in ("--set", f"{key}={given}")]


def prepare() -> None:
    """Makes intact folders of each kind; cases corrupt copies of them."""
    root = WHOLE
    for method in RUNS:
        simulate(quick_experiment(method), root / method)
    tiny = sets(small("fedavg"))
    _engram("compare", "fedavg", "--seeds", "1", *tiny, "--out", str(root / "compare"))
    searched = ["--trials", "2", "--seeds", "1", "--processes", "1"]
    _engram("tune", "fedavg", *searched, *tiny, "--out", str(root / "tune"))
    for name, run, words in _MODELS:
        _engram("export", str(root / run), *words, "--out", str(root / name))
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
    np.savez(root / "rows.npz", x=np.ones((3, 8, 8), "f4"))
    (root / "rows.csv").write_text(",".join(f"x{k}" for k in range(20)) + "\n1" + ",1" * 19)


def _engram(*words: str) -> None:
    sys.argv = ["engram", *words]
    main()


def copied(here: Path, *names: str) -> None:
    """Copies intact folders and files into a case's."""
    for name in names:
        whole = WHOLE / name
        (shutil.copytree if whole.is_dir() else shutil.copy2)(whole, here / name)


def _spoil_some(rng: random.Random, folder: Path, pattern: str = "*") -> None:
    files = sorted(path for path in folder.rglob(pattern) if path.is_file())
    for path in rng.sample(files, min(len(files), rng.choice((1, 1, 1, 2)))):
        spoil_file(rng, path)
    if rng.random() < 0.05:  # a folder's place is taken
        inner = rng.choice([folder, *sorted(p for p in folder.rglob("*") if p.is_dir())])
        shutil.rmtree(inner)
        rng.choice((Path.touch, Path.mkdir, lambda path: path.symlink_to("..")))(inner)


def run_folder(rng: random.Random, here: Path) -> list[str]:
    """Folders of runs, comparisons and searches, which are looked at, and gone on with."""
    name = rng.choice((*RUNS, "compare", "tune"))
    inside = rng.random() < 0.5
    (here / "runs").mkdir()
    copied(here / "runs" if inside else here, name)
    run = here / "runs" / name if inside else here / name
    _spoil_some(rng, run, rng.choice(("*", "*", "*.json", "*.jsonl", "*.safetensors")))
    given = name if inside else f"./{name}"
    more = sets({"num-rounds": 3})
    copied(here, "rows.npz")
    return rng.choice(
        (
            ["show", given],
            ["show", given, "--json"],
            ["runs", "runs" if inside else ".", *rng.choice(([], ["--json"]))],
            ["status", str(run.relative_to(here)), *rng.choice(([], ["--json"]))],
            ["report", given, "--html", "page.html"],
            ["track", given, "--to", "tensorboard"],
            ["run", "--resume", given],
            ["run", "--resume", given, *more],
            ["compare", "--resume", given],
            ["tune", "--resume", given, "--processes", "1"],
            ["reproduce", "sinewave", "--resume", given],
            ["export", given, "--client", "0", *rng.choice(([], ["--picked"]))],
            ["export", given, "--common", "--format", "torch"],
            ["adapt", given, "--data", "rows.npz"],
        )
    )


def checkpoint(rng: random.Random, here: Path) -> list[str]:
    """Checkpoints from which a run is resumed, or a model exported."""
    name = rng.choice(RUNS)
    copied(here, name)
    newest = max((here / name / "checkpoints").iterdir())
    if rng.random() < 0.2:
        (newest / "manifest.json").unlink()
    _spoil_some(rng, rng.choice((newest, newest.parent)))
    if rng.random() < 0.6:
        return ["run", "--resume", name, *sets({"num-rounds": 3})]
    return ["export", name, *rng.choice((["--client", "1"], ["--common"]))]


def model(rng: random.Random, here: Path) -> list[str]:
    """Exported models, which predict."""
    name = rng.choice(_MODELS)[0]
    copied(here, name, "rows.npz", "rows.csv")
    about = here / name / "model.json"
    if rng.random() < 0.6:  # with a checksum that is right
        contents = checked(json.loads(about.read_text()))
        for _ in range(rng.choice((1, 1, 2))):
            contents = spoil_json(rng, contents, depth=rng.choice((1, 2, 4)))
        contents = contents if isinstance(contents, dict) else {"what": contents}
        about.write_text(json.dumps(summed(json.loads(json.dumps(contents, default=str)))))
    else:
        _spoil_some(rng, here / name)
        if rng.random() < 0.5 and about.is_file() and not about.is_symlink():
            _sum_anew(here / name, about)
    rows = "rows.csv" if name == "model-table" else "rows.npz"
    if rng.random() < 0.1:
        spoil_file(rng, here / rows)
    return ["predict", name, rows, *rng.choice(([], ["--interval", rng.choice(("0.5", "2"))]))]


def _sum_anew(folder: Path, about: Path) -> None:
    """Makes the checksums right, so that what is behind them is read."""
    try:
        contents = json.loads(about.read_text())
        file = next(path for path in folder.glob("model.*") if path != about and path.is_file())
        contents["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        contents.pop("crc32", None)
        about.write_text(json.dumps(summed(contents)))
    except (OSError, StopIteration, TypeError, ValueError, AttributeError):
        return


def memory(rng: random.Random, here: Path) -> Sequence[str] | None:
    """Clients' memories, read by nodes and by commands."""
    kind, key = rng.choice(
        (("plain", None), ("plain", _KEY), ("encrypted", _KEY), ("encrypted", None))
    )
    copied(here, kind, "key")
    folder = here / kind / "state" / "memory" / _TRAINING
    if rng.random() < 0.8:
        _spoil_some(rng, here / kind)
    if rng.random() < 0.2:
        spoil_file(rng, here / "key")
    if rng.random() < 0.3 and folder.is_dir():
        names = ("client-x", "client-", "client-1/round-x.memory", "x" * 200)
        (folder / rng.choice(names)).mkdir(parents=True, exist_ok=True)
    given = ["--memory-key", "key"] if key else []
    commands = (
        ["list", kind, *rng.choice(([], ["--json"]))],
        ["show", kind, _TRAINING, "1", *given],
        ["export", kind, _TRAINING, "1", "out", *given],
        ["encrypt", kind, "--memory-key", "key"],
        ["forget", kind],
    )
    if rng.random() < 0.7:
        return ["memory", *rng.choice(commands)]
    rng.choice((_restored, _stored))(rng, here, folder, key)
    return None


def _restored(rng: random.Random, here: Path, folder: Path, key: bytes | None) -> None:
    del here, folder, key
    RamStore().restore(spoil_bytes(rng, tensors_to_bytes({"1/1/a": torch.ones(3)})))


def _stored(rng: random.Random, here: Path, folder: Path, key: bytes | None) -> None:
    read_key(here / "key")
    store = DiskStore(folder, key=key)
    store.load(1, before=rng.choice((2, 3)))
    store.save(1, {"a": torch.ones(3)}, server_round=3, durable=1)


def federation(rng: random.Random, here: Path) -> Sequence[str] | None:
    """Folders of nodes and of servers."""
    copied(here, "fed")
    server, node = here / "fed" / "server", here / "fed" / "client-0"
    (server / "clients" / "client-0.node").write_text("123")
    place = rng.choice((server, node))
    _spoil_some(rng, place, rng.choice(("*.toml", "*")))
    path = place / ("federation.toml" if place == server else "node.toml")
    if rng.random() < 0.3 and path.is_file() and not path.is_symlink():
        literals = ('"x:y"', "9" * 5000, "[1]", "-1", "true", "1.5", json.dumps("x" * 10**5))
        key = rng.choice(("superlink", "clients", "insecure", "x"))
        with path.open("a") as file:
            file.write(f"\n{key} = {rng.choice(literals)}\n")
    if place == node:
        read_node(node)
        return None
    if rng.random() < 0.5:
        read_server(server)
        roll(server)
        return None
    commands = (
        ["renew", "fed/server"],
        ["init-federation", "fed", "--add-client"],
        ["init-federation", "fed", "--clients", "2"],
        ["init-federation", "fed", "--new-key", "0"],
        ["stop", "fed/server", text(rng)[:100] or "x"],
    )
    return rng.choice(commands)
