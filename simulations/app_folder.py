"""The folder that `flwr run` packs, written from the packages that are running."""

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Final

from engram.settings.experiment import default_config
from engram.settings.fingerprint import ROOMS, source_root

_HEAD: Final = """\
[project]
name = "engram"
version = "{version}"

[tool.uv]
package = false

[tool.flwr.app]
publisher = "engram"

[tool.flwr.app.components]
serverapp = "{serverapp}"
clientapp = "engram.client.app:app"

[tool.flwr.app.config]
"""


def write_app(folder: Path, serverapp: str = "engram.server.app:app") -> None:
    """Writes Flower's app to a folder: the five rooms, and every setting with its default.

    The source's own ``pyproject.toml`` is for users of `flwr run .`; an installed package has none.

    Args:
        folder: The folder.
        serverapp: What the coordinator runs.
    """
    for room in ROOMS:
        shutil.copytree(
            source_root() / room, folder / room, ignore=shutil.ignore_patterns("__pycache__")
        )
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in default_config().items())
    head = _HEAD.format(version=version("engram"), serverapp=serverapp)
    (folder / "pyproject.toml").write_text(head + "".join(lines), encoding="utf-8")
