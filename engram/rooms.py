"""Check that our packages' names stand for our own modules."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

ROOMS: Final = ("engram", "federation", "client", "strategies", "server", "simulations")


def check_rooms() -> None:
    """Checks that nobody else's module is imported in the place of one of our packages.

    The names are common: a ``client.py`` beside a user's script, or in a folder of PYTHONPATH, is
    found before our package ``client``. Nothing is imported by this check.

    Raises:
        ImportError: One line that names the file, and says what to do.
    """
    ours = Path(__file__).resolve().parents[1]
    # An app that Flower has unpacked holds a copy of some of them, and takes the others elsewhere.
    for name in (name for name in ROOMS if (ours / name).is_dir()):
        found = _place(name)
        if found and Path(found).resolve() != ours / name / "__init__.py":
            raise ImportError(
                f"{name} must be Engram's own package, {ours / name}, got {found}: rename that "
                "file or folder, or take it out of the folders that Python imports from"
            )


def _place(module: str) -> str:
    """Returns the file that a module is imported from; a folder's name, if it has no such file."""
    spec = find_spec(module)
    if spec is None:
        return ""
    # An editable installation is asked last of all, after folders without __init__.py.
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "")
