"""Cases with corrupted settings: on command lines, in files, in Flower's run config."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from pydantic.fields import FieldInfo

from engram.link.addresses import parse_address
from engram.link.node_config import hosted_clients, memory_folder, read_node_config
from engram.settings.base import SharedSettings
from engram.settings.experiment import Experiment, default_config, read_by
from engram.settings.families import METHODS
from engram.settings.fields import key_of
from engram.settings.run import MachineSettings
from tests.fuzz.folders import sets, small
from tests.fuzz.spoil import spoil_bytes, spoil_file, text, value

_DEFAULTS: Final = default_config()
_WORK: Final = frozenset(  # large values of these take long, which is not a fault
    [
        *("num-clients", "num-rounds", "local-steps", "local-epochs", "batch-size", "adapt-steps"),
        *("unseen-clients", "inner-steps", "meta-steps", "user-steps", "pool", "clusters"),
    ]
)
_NUMBERS: Final = (0, 1, 2, 3, -1, 2**31, 2**32, 2**32 + 1, 2**63, 2**64 - 1, 10**400)
_FLOATS: Final = (
    *("0", "-0.0", "0.5", "1", "3", "-1", "5e-324", "1e-300", "1e-6", "1e6", "1e300", "1e308"),
    *("1e309", "nan", "inf", "-inf"),
)
_DATASETS: Final = (
    *("digits", "digits,digits", "permuted-digits", "leaf:."),
    *(f"sparse-{family}" for family in ("linear", "logistic", "poisson")),
    *("linear-groups", "cosine-groups", "npz:none.npz", "npz:", "csv:http://127.0.0.1:1/x.csv"),
    *("parquet:.", "arrow:/dev/null", "images:.", "npy:.", "npz:/dev/zero", "npz:" + "x" * 9999),
)


def edges(key: str, field: FieldInfo) -> list[str]:
    """Returns values of a setting: the ends of its range, their neighbors, other types."""
    kind = field.annotation
    bounds = [
        float(getattr(limit, name))
        for limit in field.metadata
        for name in ("gt", "ge", "lt", "le")
        if hasattr(limit, name)
    ]
    near = [bound + off for bound in bounds for off in (-1, -1e-9, 0, 1e-9, 1)]
    if kind is bool:
        return ["true", "false", "1", "no"]
    if choices := get_args(kind):
        return [*map(str, choices), "x", ""]
    if kind is int:
        numbers = [int(one) for one in near if one == int(one)]
        few = [one for one in (*_NUMBERS, *numbers) if one < 9 or one > 2**32]
        return [f"{one}" for one in (few if key in _WORK else (*_NUMBERS, *numbers))] + ["1.5", ""]
    if kind is float:
        return [*_FLOATS, *(f"{one!r}" for one in near), "x"]
    return [str(field.default), *(_DATASETS if key == "dataset" else ("", "x", "a,b", "x=y|z"))]


def setting(rng: random.Random, method: str) -> tuple[str, str]:
    """Returns a setting that a method reads, with a value that may be impossible."""
    fields = SharedSettings.model_fields | METHODS[method].model_fields
    name = rng.choice([name for name in fields if name not in ("out", "resume", "data_dir")])
    key = key_of(name)
    if rng.random() < 0.1:
        return key, text(rng)[:4000]
    return key, rng.choice(edges(key, fields[name]))


def one_run(rng: random.Random, here: Path) -> list[str]:
    """Runs of a moment with settings at the ends of their ranges."""
    (here / "used").mkdir()
    (here / "used" / "thesis.tex").touch()
    method = rng.choice(list(METHODS))
    words = sets(small(method) | {"seed": rng.randrange(9)})
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        words += ["--set", "=".join(setting(rng, method))]
    engine = rng.choice(([], [], ["--engine", "sequential"]))
    return ["run", method, *words, *engine, "--out", rng.choice(("out", "out", "used"))]


def data_of(rng: random.Random, here: Path) -> list[str]:
    """Looks at data by settings at the ends of their ranges."""
    del here
    method = rng.choice(list(METHODS))
    words = sets(small(method) | {"method": method})
    for _ in range(rng.choice((1, 1, 2))):
        words += ["--set", "=".join(setting(rng, method))]
    return ["data", *words, "--out", "rows.png"]


def run_config(rng: random.Random, here: Path) -> None:
    """Settings as Flower's run config has them."""
    del here
    method = rng.choice(list(METHODS))
    config: dict[str, Any] = read_by(method, _DEFAULTS) | {"method": method}
    for _ in range(rng.choice((1, 1, 2, 5))):
        config[rng.choice(list(config))] = value(rng)
    if rng.random() < 0.2:
        config |= {text(rng)[:4000]: 1 for _ in range(rng.choice((1, 3)))}
    if rng.random() < 0.05:
        config |= {f"{rng.random()}": 1 for _ in range(10_000)}
    if rng.random() < 0.2:
        del config[rng.choice(list(config))]
    try:
        whole = json.dumps(config, default=str)
    except ValueError:  # Python writes no number of that many digits
        whole = text(rng)
    texts = whole, text(rng), '{"a": {"b": {}}}', "[]"
    written = {"engram": texts[rng.choice((0, 0, 0, 0, 1, 2, 3))]}
    e = Experiment.from_run_config(rng.choice((config, written, written | {"method": "fedavg"})))
    e.on_machine({rng.choice(MachineSettings.all_keys()): value(rng)})
    _ = (e.identity(), e.hidden_widths, e.own.sources(e), e.rounds)


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


_LITERALS: Final = (
    *("1", "1.5", "nan", "-inf", "1979-05-27T07:32:00Z", "07:32:00", "[1, 2]", "{a = 1}"),
    *('"""\nx"""', "0x" + "f" * 5000, "9" * 5000, "[" * 5000, "[" * 50 + "]" * 50),
    *("{a = " * 2000, '"' + "x" * 100_000 + '"', '"\\u0000"', "true", "1e400", "'", ""),
)


def config_file(rng: random.Random, here: Path) -> list[str]:
    """Files of settings."""
    keys = [*_DEFAULTS, "a.b", '"é"', '""', "[table]", "[[list]]", "x" * 1000, "a" + ".a" * 2000]
    lines = [f"{rng.choice(keys)} = {rng.choice(_LITERALS)}" for _ in range(rng.choice((0, 1, 3)))]
    plain = [f"{key} = {json.dumps(given)}" for key, given in small("fedavg").items()]
    path = here / "settings.toml"
    path.write_text("\n".join([*plain, *lines]), encoding="utf-8")
    if rng.random() < 0.4:
        path.write_bytes(spoil_bytes(rng, path.read_bytes()))
    if rng.random() < 0.2:
        spoil_file(rng, path)
    command: Mapping[str, list[str]] = {"data": ["--out", "rows.png"], "run": ["fedavg"]}
    name = rng.choice(list(command))
    return [name, *command[name], "--config", "settings.toml"]
