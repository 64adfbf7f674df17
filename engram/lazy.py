"""Names that a package gives its users, imported when they are first looked at (SPEC 1)."""

import ast
import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

from engram.core.process_modes import own_modes


def attach(
    package: str, file: str, within: Callable[[], AbstractContextManager[object]] = own_modes
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns a package's ``__getattr__``, ``__dir__`` and ``__all__``.

    Its names are those that it imports ``if TYPE_CHECKING``, as type checkers and editors see them.

    Args:
        package: The package's ``__name__``.
        file: Its ``__file__``.
        within: The context in which names are imported.
    """
    names = _imported(Path(file))

    class Package(ModuleType):
        # Python makes a module that is imported an attribute of its package. The functions
        # `engram.compare` and `linucb` are not to give way to the modules of these names.
        def __setattr__(self, name: str, value: object) -> None:
            if not (name in names and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    sys.modules[package].__class__ = Package

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with within():
            return getattr(importlib.import_module(names[name]), name)

    return get, lambda: sorted(names), sorted(names)


def _imported(file: Path) -> dict[str, str]:
    """Returns the module of each name that a file imports under a condition."""
    body = ast.parse(file.read_text("utf-8")).body
    below = (line for part in body if isinstance(part, ast.If) for line in part.body)
    lines = (line for line in below if isinstance(line, ast.ImportFrom))
    return {alias.name: str(line.module) for line in lines for alias in line.names}
