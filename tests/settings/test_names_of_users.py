"""Files of a user's that are called as folders of ours do no harm, and stay the user's own."""

import os
import subprocess
import sys

import pytest

from engram.settings.fingerprint import source_root
from tests.samples import sampled

NAMES = ("client", "server", "strategies", "simulations", "federation")
RUN = """
import torch
import {names}

torch.set_default_dtype(torch.float64)
with torch.inference_mode():
    import engram

    settings = {{"num_rounds": 1, "num_clients": 2, "clients_per_round": 2, "progress": False}}
    run = engram.simulate(method="fedavg", out="run", **settings)
    found = engram.load_model(run.export(0))
assert len(run.clients) == 2
print(torch.get_default_dtype(), {{leaf.dtype for leaf in found.parameters()}})
print(*({name}.MINE for {name} in ({names},)))
"""


def python(folder, *words):
    line, where = [sys.executable, *words], os.environ | {"PYTHONPATH": str(source_root())}
    done = subprocess.run(line, env=where, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("place", sampled(["{}.py", "{}/__init__.py"], ["{}/__init__.py"]))
def test_modules_beside_a_script_and_modes_before_the_first_import(place, tmp_path):
    """Modules are loaded in the modes of their call, and a warning ends nothing."""
    for name in NAMES:
        file = tmp_path / place.format(name)
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"MINE = {name!r}")
    names = ", ".join(NAMES)
    (tmp_path / "mine.py").write_text(RUN.format(names=names, name="each"))
    said = python(tmp_path, "-W", "error", "mine.py")
    assert said == f"torch.float64 {{torch.float32}}\n{' '.join(NAMES)}\n"


def test_folders_without_modules(tmp_path):
    for name in NAMES:
        (tmp_path / name).mkdir()
    assert python(tmp_path, "-m", "engram", "--version").startswith("engram ")
