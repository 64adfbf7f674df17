"""The folder that `flwr run` packs: settings alone, since both sides have Engram installed."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Final

from engram.settings.experiment import default_config

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
    """Writes Flower's app to a folder: its components, and every setting with its default.

    The source's own ``pyproject.toml`` is for users of `flwr run .`; an installed package has none.

    Args:
        folder: The folder.
        serverapp: What the coordinator runs.
    """
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in default_config().items())
    head = _HEAD.format(version=version("engram"), serverapp=serverapp)
    (folder / "pyproject.toml").write_text(head + "".join(lines), encoding="utf-8")
