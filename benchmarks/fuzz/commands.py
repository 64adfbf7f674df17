"""Cases with corrupted settings, files of settings, and command lines."""

import errno
import json
import random
import signal
from pathlib import Path
from typing import Any, Final

from benchmarks.fuzz.spoil import spoil_bytes, spoil_file, text, value
from federation.addresses import parse_address
from federation.errors import Refused, one_line
from federation.experiment import Experiment, default_config, read_by
from federation.hosting import hosted_clients, memory_folder, read_node_config
from federation.methods import METHODS
from federation.settings.files import read_settings
from federation.settings.machine import MachineSettings
from simulations.cli import app
from simulations.engine import simulate

_DEFAULTS: Final = default_config()
SMALL: Final[dict[str, Any]] = {
    "num-clients": 4,
    "clients-per-round": 2,
    "num-rounds": 1,
    "local-steps": 1,
    "batch-size": 2,
    "adapt-shots": 2,
    "rows-per-class": 4,
    "test-rows-per-class": 4,
    "hidden": "4",
}
_TINY: Final = SMALL | {"timeout": 1.0}
_TINY_OWN: Final[dict[str, dict[str, Any]]] = {
    "local-moml": {"initial-batch-size": 2},
    "meta-ban": {"meta-steps": 1, "user-steps": 1},
}
_LONG_WORK: Final = {  # large values of these take long, which is not a hang
    "num-clients",
    "num-rounds",
    "adapt-steps",
    "inner-steps",
    "meta-steps",
    "user-steps",
}
_ASIDE: Final = {"out", "resume", "data-dir", "device", "timeout"}
_DATASETS: Final = (
    "digits",
    "sparse-linear",
    "sparse-logistic",
    "sparse-poisson",
    "linear-groups",
    "cosine-groups",
    "digits,digits",
    "permuted-digits",
    "npz:none.npz",
    "csv:none.csv",
    "npz:",
    "csv:http://127.0.0.1:1/x.csv",
    "npz:" + "x" * 100_000,
)
_ENTRIES: Final = (1, 2, 3, 7, 64, 10**6, 10**9, 2**32)


def settings(rng: random.Random, here: Path) -> None:
    """Settings as Flower's run config has them."""
    del here
    config: dict[str, Any] = {**_DEFAULTS, "method": rng.choice(list(METHODS))}
    wild = rng.random() < 0.5
    for _ in range(rng.choice((1, 1, 2, 5))):
        key = rng.choice(list(config))
        config[key] = value(rng) if wild else _setting(rng, key, config[key])
    if rng.random() < 0.2:
        config |= {text(rng)[:4000]: 1 for _ in range(rng.choice((1, 3)))}
    if rng.random() < 0.05:
        config |= {f"{rng.random()}": 1 for _ in range(10_000)}
    if rng.random() < 0.2:
        del config[rng.choice(list(config))]
    e = Experiment.from_run_config(config)
    e.on_machine({rng.choice(MachineSettings.all_keys()): value(rng)})
    _ = (e.identity(), e.hidden_widths, e.own.datasets(e), e.rounds)


def node_config(rng: random.Random, here: Path) -> None:
    """A node's configuration, and addresses."""
    config: dict[str, Any] = {"partition-id": 1, "num-partitions": 3, "state": str(here)}
    config |= {"memory-limit": 5.0, "memory-days": 1.0, "data": "npz:x.npz", "memory-key": ""}
    for _ in range(rng.choice((1, 2))):
        key = rng.choice(list(config))
        config[key] = value(rng) if rng.random() < 0.5 else config[key]
    node = read_node_config(config)
    hosted_clients(rng.choice((1, 4, 10**6)), node)
    memory_folder(node, Experiment(), 1, rng.choice(("0" * 16, "", "../x")))
    if rng.random() < 0.5:
        parse_address(text(rng), "superlink")


def tiny_run(rng: random.Random, here: Path) -> None:
    """Runs of a round, which may be refused."""
    method = rng.choice(list(METHODS))
    tables = METHODS[method].plug_in != "local"
    tiny = (
        read_by(method, _TINY)
        | _TINY_OWN.get(method, {})
        | {"method": method, "seed": rng.randrange(2**32)}
    )
    config = Experiment.from_config(tiny).to_config()
    names = ("sparse-linear", "digits,digits") if method == "meta-ban" else ("sparse-linear",)
    if tables:
        config |= {"dataset": rng.choice(names), "num-clients": rng.choice((3, 20))}
        config |= {"dataset": "linear-groups"} if method == "meta-ban" else {}
    keys = [key for key in config if key not in _ASIDE | {"seed", "method"}]
    for key in rng.choices(keys, k=rng.choice((0, 1, 2, 3))):
        config[key] = _setting(rng, key, config[key])
    simulate(Experiment.from_config(config), here / "run")


def _setting(rng: random.Random, key: str, now: Any) -> Any:
    key = key.rpartition(".")[2]
    choices = _CHOICES.get(key)
    if choices:
        return rng.choice(choices)
    if isinstance(now, bool):
        return not now
    if isinstance(now, int):
        return rng.choice(_ENTRIES[:3] if key in _LONG_WORK else _ENTRIES)
    if isinstance(now, float):
        return rng.choice((1e-300, 1e-6, 0.01, 0.5, 1.0, 3.0, 1e6, 1e300))
    return rng.choice((now, text(rng)))


_CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "dataset": _DATASETS,
    "partition": ("halves", "iid", "dirichlet", "pathological", "natural", "blocks"),
    "model": ("mlp", "cnn", "linear"),
    "order": ("shuffled", "stream"),
    "hessian": ("exact", "first-order", "finite-difference"),
    "memory": ("reset", "carry"),
    "server-step": ("replace", "universal"),
    "merge": ("mean", "median", "trimmed-mean", "krum"),
    "privacy": ("none", "local", "central"),
    "family": ("linear", "logistic", "poisson"),
    "thresholding": ("hard", "soft"),
    "site-weights": ("precision", "equal"),
    "bandit-model": ("C", "P"),
    "history": ("batch", "all"),
    "hidden": ("", "4", "4,4", "1048576,1048576", ",".join(["9"] * 60), "1000000"),
    "cpu-threads": (1,),
    "num-classes": (0, 2, 9, 10, 11, 1000, 10**6),
}


def config_file(rng: random.Random, here: Path) -> None:
    """Files of settings."""
    literals = (
        "1",
        "1.5",
        "nan",
        "-inf",
        "1979-05-27T07:32:00Z",
        "07:32:00",
        "[1, 2]",
        "{a = 1}",
        '"""\nx"""',
        "0x" + "f" * 5000,
        "9" * 5000,
        "[" * 5000,
        "[" * 50 + "]" * 50,
        "{a = " * 2000,
        '"' + "x" * 100_000 + '"',
        '"\\u0000"',
        "true",
        "1e400",
        "'",
        "",
    )
    keys = [*_DEFAULTS, "a.b", '"é"', '""', "[table]", "[[list]]", "x" * 1000, "a" + ".a" * 2000]
    lines = [f"{rng.choice(keys)} = {rng.choice(literals)}" for _ in range(rng.choice((0, 1, 3)))]
    plain = [f"{key} = {json.dumps(_DEFAULTS[key])}" for key in rng.sample(list(_DEFAULTS), 4)]
    path = here / "settings.toml"
    path.write_text("\n".join([*plain, *lines]), encoding="utf-8")
    if rng.random() < 0.4:
        path.write_bytes(spoil_bytes(rng, path.read_bytes()))
    if rng.random() < 0.2:
        spoil_file(rng, path)
    Experiment.from_run_config(_DEFAULTS | read_settings(path))


def invoke(*words: str) -> None:
    """Runs a command of `engram` in this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if status := app(list(words), standalone_mode=False):
            raise SystemExit(status)
    except SystemExit as end:
        if end.code not in (0, None, 2):
            raise RuntimeError(f"status {end.code}") from end
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # `engram` refuses these itself
            raise
        raise Refused(f"{one_line(str(error.filename))}: {error.strerror}") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_QUICK: Final = [word for key, given in _TINY.items() for word in ("--set", f"{key}={given}")]
_COMMANDS: Final[dict[str, list[str]]] = {
    "run": ["--out", "--resume", "--engine", "--config", "--set", "--control", "--json"],
    "compare": ["--out", "--resume", "--engine", "--config", "--set", "--seeds", "fedavg"],
    "show": ["--json"],
    "data": ["--out", "--config", "--set", "--json"],
    "node": ["--state", "--data", "--set", "--memory-key", "--memory-limit", "--give-up"],
    "memory list": ["--state", "--json"],
    "memory show": ["--state", "--memory-key"],
    "memory export": ["--state", "--memory-key"],
    "memory forget": ["--state"],
    "memory encrypt": ["--state", "--memory-key"],
    "memory new-key": [],
    "init-federation": ["--clients", "--host", "--renew", "--add-client", "--insecure"],
    "superlink": ["--control"],
    "register": ["--control"],
    "status": ["--control", "--json"],
    "reproduce sinewave": ["--seeds", "--resume", "-k", "--iterations", "--hessian"],
    "reproduce one-shot": ["--seeds", "--resume", "--dataset", "--data-dir"],
    "reproduce molar-regression": ["--seeds", "--resume", "--figure"],
    "reproduce molar-bandit": ["--seeds", "--resume"],
    "reproduce molar-table": ["--task", "--target", "--family", "--resume"],
    "reproduce meta-ban": ["--seeds", "--resume", "--data-dir"],
    "reproduce universal": ["--seeds", "--resume"],
    "reproduce universal-stream": ["--seeds", "--resume"],
    "": ["run", "--help", "--version"],
}


def command(rng: random.Random, here: Path) -> None:
    """Command lines; --out is in use where they would take long, so that they are refused."""
    (here / "used").mkdir()
    (here / "used" / "thesis.tex").touch()
    (here / "file").touch()
    (here / "link").symlink_to("nowhere")
    name = rng.choice(list(_COMMANDS))
    words = name.split()
    if name in ("run", "compare"):
        words += _QUICK
    for _ in range(rng.choice((0, 1, 2, 3))):
        words += rng.sample(_COMMANDS[name], min(1, len(_COMMANDS[name])))
        if rng.random() < 0.9:
            words.append(_word(rng))
    if rng.random() < 0.6:
        words.append(_word(rng))
    if name.startswith("reproduce"):
        words += ["--out", "used"]
    if name in ("compare",):
        words += ["--out", rng.choice(("used", "file/x", "x" * 5000))]
    possible = (word.replace("\0", "").encode(errors="ignore").decode() for word in words)
    invoke(*possible)  # only words that a shell can pass


def _word(rng: random.Random) -> str:
    paths = (
        "used",
        "file",
        "link",
        "nowhere",
        "file/x",
        "link/x",
        "/dev/zero",
        "x" * 300,
        "a/" * 3000,
    )
    pairs = (f"{rng.choice(list(_DEFAULTS))}={text(rng)[:2000]}", "=", "x=", "=1", "seed = 3")
    return str(rng.choice((rng.choice(paths), rng.choice(pairs), text(rng)[:100_000])))
