"""The tables of settings in pyproject.toml, written from the settings' classes.

``python -m tests.federation.pyproject_tables`` writes them anew, and the types for editors; tests
compare.
"""

import json
from pathlib import Path

from engram.settings.experiment import default_config
from tests.federation.given_settings import STUB, stub

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
FIRST, LAST = "[tool.flwr.app.config]\n", "\n[tool.ruff]"


def tables() -> str:
    """Returns the tables as pyproject.toml should have them."""
    lines: dict[str, list[str]] = {"": []}
    for key, value in default_config().items():
        method, _, own = key.rpartition(".")
        lines.setdefault(method, []).append(f"{own} = {json.dumps(value)}")
    named = [f"\n[tool.flwr.app.config.{m}]\n" + "\n".join(lines[m]) + "\n" for m in lines if m]
    return FIRST + "\n".join(lines[""]) + "\n" + "".join(named)


def parts() -> tuple[str, str, str]:
    """Returns what is before the tables, the tables, and what is after them."""
    text = PYPROJECT.read_text(encoding="utf-8")
    start, end = text.index(FIRST), text.index(LAST)
    return text[:start], text[start:end], text[end:]


if __name__ == "__main__":
    before, _, after = parts()
    PYPROJECT.write_text(before + tables() + after, encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")
