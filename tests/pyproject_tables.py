"""The list in pyproject.toml of the packages that uv leaves out.

``python -m tests.pyproject_tables`` writes it anew; tests/test_house.py compares.
"""

import json
import re
import tomllib
from itertools import chain
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


if __name__ == "__main__":
    text = PYPROJECT.read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = sorted({re.split(r"[\[<>=!~; ]", line)[0] for line in wanted})
    line = f"exclude-dependencies = {json.dumps(names)}\n"
    head, _, rest = text.partition("exclude-dependencies = [")
    PYPROJECT.write_text(head + line + rest.partition("]\n")[2], encoding="utf-8")
