"""Plug-ins: other packages' modules that register methods, data and networks.

A process loads those that its own user has named, by ``engram --plugin`` or in ENGRAM_PLUGINS, and
that are on its own machine. No message of another machine names one. The processes that it starts
find the names, and the folders of the modules, in their environment.
"""

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from engram.core.checks import must
from engram.settings.errors import Refused, one_line
from engram.settings.files import parse_toml, read_file
from engram.settings.settings_files import flat, in_run_config

VARIABLE: Final = "ENGRAM_PLUGINS"
"""Holds the plug-ins of a process, with commas: NAME of each, or FOLDER/NAME."""

MOVING: Final = "see 'Moving from LocalRule' in docs/extending.md"
"""Advice for plug-ins of older versions."""

OURS: Final = str(Path(__file__).absolute().parents[2])
"""Folder that the package ``engram`` is imported from."""

# The names from which older plug-ins imported.
_ROOMS: Final = {"engram", "federation", "client", "strategies", "server", "simulations"}
_PROJECT: Final = Path("pyproject.toml")
_LARGEST: Final = 2**20  # bytes of a pyproject.toml


def plugins() -> tuple[str, ...]:
    """Returns the plug-ins of this process: NAME, or FOLDER/NAME."""
    return tuple(filter(None, os.environ.get(VARIABLE, "").split(",")))


def project_plugins() -> str:
    """Returns the plug-ins that the pyproject.toml in the current folder names, with commas.

    Raises:
        Refused: It cannot be read, or its table ``tool.engram`` has something else.
    """
    match _tool():
        case {"engram": {"plugin": str(names), **others}} if not others:
            return names
        case {"engram": table}:
            raise Refused(must(f"[tool.engram] of {_PROJECT}", table, 'plugin = "NAME"'))
    return ""


def project_settings() -> dict[str, Any]:
    """Returns the settings of the project in the current folder: those that `flwr run .` takes.

    They stand in ``[tool.flwr.app.config]`` of a pyproject.toml that names plug-ins.

    Raises:
        Refused: It cannot be read, or holds tables in tables.
    """
    match _tool():
        case {"engram": _, "flwr": {"app": {"config": dict(table)}}}:
            return in_run_config(flat(table, f"[tool.flwr.app.config] of {_PROJECT}"))
    return {}


def _tool() -> dict[str, Any]:
    if not _PROJECT.is_file():
        return {}
    try:
        project = parse_toml(read_file(_PROJECT, most=_LARGEST))
    except (OSError, ValueError) as error:
        raise Refused(f"{_PROJECT} cannot be read: {one_line(str(error))}") from error
    tool = project.get("tool", {})
    return tool if isinstance(tool, dict) else {}


def add_plugins(names: str) -> None:
    """Adds plug-ins, given with commas, to those of this process and of those that it starts.

    They are looked for where Python looks for modules, and then in the current folder. Nothing is
    imported.

    Raises:
        Refused: One of them is nowhere.
    """
    found = dict.fromkeys(plugins())
    for name in filter(None, map(str.strip, names.split(","))):
        path = Path.cwd() / name
        found[str(source_of(str(path)).with_name(path.name))] = None
    os.environ[VARIABLE] = ",".join(found)


def load_plugins() -> None:
    """Imports the plug-ins of this process, unless they are imported already.

    Raises:
        Refused: One of them cannot be imported.
    """
    for plugin in plugins():
        folder, _, name = plugin.rpartition("/")
        # Last, so that nothing beside a plug-in hides a module of others; ours before it, since an
        # editable installation finds them only after all of these folders.
        for place in (OURS, folder) if folder else ():
            if place not in sys.path:
                sys.path.append(place)
        try:
            import_module(name)
        except (Exception, SystemExit) as error:
            why = one_line(f"{type(error).__name__}: {error}")
            asked = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
            if asked in _ROOMS and MOVING not in why:
                why += f"; {MOVING}"
            raise Refused(f"plug-in {one_line(name)} cannot be imported: {why}") from error


def source_of(plugin: str) -> Path:
    """Returns the file of a plug-in, NAME or FOLDER/NAME, or its whole package's folder.

    Raises:
        Refused: There is none.
    """
    folder, _, name = plugin.rpartition("/")
    spec = _find(name.partition(".")[0], folder)
    places = (spec.submodule_search_locations or [spec.origin or ""]) if spec else []
    for place in map(Path, places):
        if place.is_dir() or place.suffix == ".py":
            return place.absolute()
    raise Refused(must("plug-in", name, "a Python module that is installed, or in this folder"))


def _find(module: str, folder: str) -> ModuleSpec | None:
    if not module.isidentifier():
        return None
    try:
        found = find_spec(module)
    except ValueError:  # __main__, which has none
        found = None
    return found or PathFinder.find_spec(module, [folder] if folder else [])
