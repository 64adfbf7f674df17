"""Commands for a user's own work: a project, and an app for `flwr run`."""

import keyword
import re
import shlex
import shutil
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer

from engram.cli.options import argument, flag
from engram.core.checks import must
from engram.runs.run_places import make_folder
from engram.settings.errors import Refused, say
from engram.settings.plugins import VARIABLE, plugins
from engram.settings.settings_files import run_config_table

_TEMPLATES: Final = Path(__file__).parents[1] / "simulations"
_NAME: Final = "your_project"  # in the template's files, and the name of its package
_LONGEST: Final = 32  # characters that Flower takes for the name of an app
# Folders beside the package, or that Flower leaves out when it packs an app.
_TAKEN: Final = frozenset({"build", "data", "eggs", "env", "fed", "lib", "parts", "runs", "tests"})

_APP: Final = """\
[project]
name = "engram"
version = "{version}"

[tool.uv]
package = false

[tool.flwr.app]
publisher = "engram"

[tool.flwr.app.components]
serverapp = "engram.server.app:app"
clientapp = "engram.client.app:app"

"""

app = typer.Typer()


@app.command()
def new(
    name: Annotated[str, argument("NAME", "Of the folder, and of its package.")],
    flower: Annotated[bool, flag("--flower", "A Flower app with a loop of its own.")] = False,
) -> None:
    """Make a project of your own: a network, data and a method, for all engines."""
    word = re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name, re.ASCII) and len(name) <= _LONGEST
    if not word or keyword.iskeyword(name):
        raise Refused(
            must("NAME", name, f"a Python name, 2 to {_LONGEST} small letters, digits and _")
        )
    if name in _TAKEN or find_spec(name) is not None:
        raise Refused(must("NAME", name, "one that hides no module, and no folder of a project"))
    folder = Path(name)
    if folder.exists() or folder.is_symlink():
        raise Refused(f"{name} is there already: name a new folder")
    try:
        with TemporaryDirectory(prefix=f".{name}-", dir=".") as place:
            whole = Path(place) / name
            _write(_TEMPLATES / ("flower_app" if flower else "project"), whole, name)
            whole.rename(folder)
    except OSError as error:
        raise Refused(f"{name} cannot be made: {error.strerror}") from error
    say(f"cd {name} && {'flwr run .' if flower else 'engram run'}")


def _write(template: Path, folder: Path, name: str) -> None:
    shutil.copytree(template, folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (folder / _NAME).rename(folder / name)
    for path in folder.rglob("*.*"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(_NAME, name), encoding="utf-8")


@app.command("app")
def write(folder: Annotated[Path, argument("FOLDER", "A new folder.")]) -> None:
    """Write the app that `flwr run FOLDER` runs.

    Modules of plug-ins are not in it: Flower's processes import those named in ENGRAM_PLUGINS.
    """
    if folder.exists():
        raise Refused(f"{folder} is there already: name a new folder")
    make_folder(folder)
    text = _APP.format(version=version("engram")) + run_config_table()
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    named = f"{VARIABLE}={shlex.quote(','.join(plugins()))} " if plugins() else ""
    say(f"{named}flwr run {shlex.quote(str(folder))}")
