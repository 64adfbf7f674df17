"""Files of a user's that are called as folders of ours do no harm, and stay the user's own."""

import os
import subprocess
import sys

import pytest

from engram.settings.fingerprint import source_root

NAMES = ("client", "server", "strategies", "simulations", "federation")
RUN = """
import {names}
import engram
run = engram.simulate(method="fedavg", num_rounds=1, local_steps=1, progress=False, out="run")
assert len(run.clients) == 20
print(*({name}.MINE for {name} in ({names},)))
"""


def python(folder, *words):
    where = os.environ | {"PYTHONPATH": str(source_root())}
    done = subprocess.run(
        [sys.executable, *words],
        env=where,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("place", ["{}.py", "{}/__init__.py"])
def test_modules_beside_a_script(place, tmp_path):
    for name in NAMES:
        file = tmp_path / place.format(name)
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"MINE = {name!r}")
    names = ", ".join(NAMES)
    (tmp_path / "mine.py").write_text(RUN.format(names=names, name="each"))
    assert python(tmp_path, "mine.py") == " ".join(NAMES) + "\n"


def test_folders_without_modules(tmp_path):
    for name in NAMES:
        (tmp_path / name).mkdir()
    assert python(tmp_path, "-m", "engram", "--version").startswith("engram ")
