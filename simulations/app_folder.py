"""The folder that `flwr run` packs: settings alone, since both sides have Engram installed."""

from importlib.metadata import version
from pathlib import Path
from typing import Final

from engram.settings.settings_files import run_config_table

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

"""


def write_app(folder: Path, serverapp: str = "engram.server.app:app") -> None:
    """Writes Flower's app to a folder: its components, and the keys of its run config.

    The source's own ``pyproject.toml`` is for users of `flwr run .`; an installed package has none.

    Args:
        folder: The folder.
        serverapp: What the coordinator runs.
    """
    head = _HEAD.format(version=version("engram"), serverapp=serverapp)
    (folder / "pyproject.toml").write_text(head + run_config_table(), encoding="utf-8")
