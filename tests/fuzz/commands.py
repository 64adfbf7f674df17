"""Cases with command lines, made of the commands and options that the parser knows."""

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import typer

from engram.cli.cli import app
from engram.settings.families import METHODS
from tests.fuzz.folders import copied, sets, small
from tests.fuzz.settings import setting
from tests.fuzz.spoil import text as any_text

_TRAINING: Final = ("run", "compare", "tune", "federation", "data")
_WHOLE: Final = (
    *("fedavg", "compare", "tune", "model", "fed", "plain", "rows.npz", "rows.csv", "key"),
)
_PATHS: Final = (
    *("used", "file", "link", "nowhere", "new", "file/x", "link/x", ".", "..", "", "~", "-"),
    *("/dev/zero", "/proc/1/mem", "x" * 300, "a/" * 3000, "fed/server", "fed/client-0", "é\udce9"),
)
_NUMBERS: Final = ("0", "1", "2", "-1", "1.5", "nan", "inf", "1e309", str(2**64), "9" * 5000, "x")
_ADDRESSES: Final = ("127.0.0.1:1", "localhost", "[::1]:1", ":", "x:y", "127.0.0.1:99999", "")
_WORDS: Final = ("sequential", "torch", "onnx", "tensorboard", "all", "sinewave", "client-0", "0")
_Command = tuple[tuple[str, ...], list[click.Parameter]]


@functools.cache
def all_commands() -> list[_Command]:
    """Returns every command of ``engram``: its words, and its parameters."""
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    return [((), root.params), *_under((), root)]


def _under(words: tuple[str, ...], group: click.Group) -> list[_Command]:
    found: list[_Command] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        assert command is not None
        inner = (*words, name)
        found.append((inner, command.params))
        found += _under(inner, command) if isinstance(command, click.Group) else []
    return found


def text(rng: random.Random) -> str:
    """Returns any text, which as a path does not lead out of the case's folders."""
    found = any_text(rng)
    return found if found.strip("./") else ".."


def command(rng: random.Random, here: Path) -> list[str]:
    """Command lines of any command, with any of its arguments and options."""
    (here / "used").mkdir()
    (here / "used" / "thesis.tex").touch()
    (here / "file").write_text("x")
    (here / "link").symlink_to("nowhere")
    words, parameters = rng.choice(all_commands())
    line = list(words)
    options = [one for one in parameters if isinstance(one, click.Option)]
    arguments = [one for one in parameters if isinstance(one, click.Argument)]
    line += [_word(rng, one) for one in arguments if rng.random() < 0.5 + 0.45 * one.required]
    if words and words[0] in _TRAINING:
        line += sets(small(next((word for word in line if word in METHODS), "fedavg")))
    for one in rng.sample(options, min(len(options), rng.choice((0, 1, 1, 2, 3)))):
        line.append(rng.choice([*one.opts, *one.secondary_opts]))
        if not one.is_flag and rng.random() < 0.97:
            line.append(_word(rng, one))
    if rng.random() < 0.05:
        line.insert(rng.randrange(len(line) + 1), text(rng))
    if words and words[0] == "reproduce":  # which takes long, and refuses this at once
        line += ["--out", "used"]
    copied(here, *(name for name in _WHOLE if any(w.split("/")[0] == name for w in line)))
    return line


def _word(rng: random.Random, parameter: click.Parameter) -> str:
    """Returns a value of a parameter, often of the kind that its help speaks of."""
    metavar = str(parameter.metavar or parameter.type.name).strip("[].").upper()
    makers: dict[str, Callable[[], str]] = {
        "KEY=VALUE": lambda: "=".join(setting(rng, rng.choice(list(METHODS)))),
        "METHOD": lambda: rng.choice((*METHODS, "all")),
        **dict.fromkeys(("HOST:PORT", "ADDRESS"), lambda: rng.choice(_ADDRESSES)),
        **dict.fromkeys(
            ("N", "D", "DAYS", "MIB", "SECONDS", "LEVEL", "INTEGER", "FLOAT", "INTEGER RANGE"),
            lambda: rng.choice(_NUMBERS),
        ),
        **dict.fromkeys(
            ("DIR", "FILE", "FOLDER", "RUN", "PATH", "ROWS", "MODEL", "SERVER_FOLDER"),
            lambda: rng.choice((*_PATHS, *_WHOLE)),
        ),
    }
    if rng.random() < 0.8 and metavar in makers:
        return makers[metavar]()
    return rng.choice((rng.choice(_WORDS), rng.choice(_PATHS), rng.choice(_WHOLE), text(rng)))
