"""What is written of clients is its owner's alone, whatever the mask of the process."""

import os
import stat

import numpy as np
import pytest

import engram
from tests.samples import entry

QUICK = {"num_rounds": 2, "eval_every": 1, "checkpoint_every": 1, "clients_per_round": 2}
QUICK |= {"hidden": "4", "local_steps": 1}


@pytest.fixture(autouse=True)
def _open_mask():
    before = os.umask(0)
    yield
    os.umask(before)


def check(folder):
    """The folder and all files in it are for their owner; so nobody enters folders in it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path for path in files if stat.S_IMODE(path.stat().st_mode) != 0o600} == set()


def test_runs_exports_and_comparisons_from_python(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    data = {"a": (x, y), "b": (-x, y), "c": (2 * x, y)}
    run = engram.simulate(data, method="ditto", out=tmp_path / "run", progress=False, **QUICK)
    check(tmp_path / "run")
    run.export("a", out=tmp_path / "model")
    check(tmp_path / "model")
    out = tmp_path / "both"
    engram.compare(data, methods=["fedavg"], seeds=1, out=out, progress=False, **QUICK)
    check(out)


def test_whatever_commands_write(engram, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for words, made in [
        ("run ditto --out run --set num-rounds=2", "run"),
        ("report run", "run"),
        ("show run", "run"),
        ("export run --client 0 --out model", "model"),
        ("compare fedavg --out both --seeds 1 --set num-rounds=2", "both"),
    ]:
        with entry(words):
            status, _, err = engram(*words.split())
            assert status == 0, err
            check(tmp_path / made)
