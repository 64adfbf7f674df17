"""The product's files, for tests that read the source."""

from pathlib import Path

from engram.settings.fingerprint import source_root

# The last four appear in the package by links, which ``rglob`` does not follow.
ROOMS = ("engram", "client", "strategies", "server", "simulations")


def source_files(*folders: str) -> list[Path]:
    """Returns the modules in folders of the repository; by default, those of the whole product."""
    found = (source_root() / folder for folder in folders or ROOMS)
    return [path for folder in found for path in sorted(folder.rglob("*.py"))]


def module_of(path: Path) -> str:
    """Returns the name by which a module of the product is imported."""
    parts = path.relative_to(source_root()).with_suffix("").parts
    named = parts if parts[0] == "engram" else ("engram", *parts)
    return ".".join(named).removesuffix(".__init__")
