"""Commands where folders cannot be written into, and where there is no home or shared memory."""

import errno
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from engram.core.process_modes import own_modes
from engram.settings.errors import Refused
from engram.settings.files import replace_file
from engram.settings.fingerprint import source_root
from engram.simulations.ray_connect import join
from tests.cli.words import SETS, let

BANDIT = ("run", "meta-ban", *let("num-clients=10", "num-rounds=2"))
FEW = ("--horizon", "20", "--seeds", "1", "--processes", "1")


def refuse(*args, **how):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), "a name that was drawn")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "fedavg", *SETS, "--json"),
        ("compare", "fedavg", "--seeds", "1", *SETS),
        BANDIT,
        ("reproduce", "universal", *FEW),
    ],
    ids=lambda words: words[0],
)
def test_tables_of_a_folder_that_cannot_be_written_into_are_shown(engram, monkeypatch, words):
    assert engram(*words, "--out", "done")[0] == 0
    show = ("show", "done", *words[-1:]) if words[-1] == "--json" else ("show", "done")
    _, usual, before = engram(*show)
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    status, shown, said = engram(*show)
    assert (status, shown) == (0, usual)
    assert said == f"engram: nothing is drawn anew in done: Read-only file system\n{before}"


def test_a_full_disk_is_no_folder_that_may_not_be_written_into(engram, monkeypatch):
    assert engram(*BANDIT, "--out", "done")[0] == 0

    def full(*args, **how):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkstemp", full)
    status, _, said = engram("show", "done")
    assert status == 1
    assert said == "engram: done/regret.png: No space left on device\n"


def test_an_error_names_the_file_that_was_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(OSError, match="Read-only") as caught:
        replace_file(tmp_path / "a.png", b"")
    assert caught.value.filename == str(tmp_path / "a.png")


@pytest.mark.processes
def test_missing_semaphores_are_told_in_one_line(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import _multiprocessing\n"
        "import multiprocessing.synchronize\n"
        "def fail(*args, **how): raise OSError(28, 'No space left on device')\n"
        "_multiprocessing.SemLock = fail\n"
    )
    words = ["compare", "fedavg", "local", "--tuned", "--trials", "1", "--seeds", "1"]
    words += ["--processes", "2", "--out", "found", *let("num-rounds=1", "hidden=4")]
    words += let("num-clients=4", "clients-per-round=4")  # all keep a model
    done = subprocess.run(
        [Path(sys.executable).parent / "engram", *words],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
    )
    progress = re.compile(r"a round: |.*: \d+ of \d+ (rounds|models|runs|searches)\b")
    lines = [line for line in done.stderr.splitlines() if not progress.match(line)]
    lines = [line for line in lines if "share the cores" not in line]  # where there is but one
    why = "others need shared memory: No space left on device"
    assert lines == [f"engram: all runs in this process, since {why}"]
    assert done.returncode == 0


@pytest.mark.processes
def test_a_missing_home_is_not_told():
    code = "import engram.cli, matplotlib as mpl; mpl.get_configdir(); mpl.get_cachedir()"
    where = os.environ | {"HOME": "/proc/none", "PYTHONPATH": str(source_root())}
    where.pop("MPLCONFIGDIR", None)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=where)
    assert done.stderr == b""


CALLS = """
import os
import sys
from contextlib import chdir

import numpy as np

import engram

x = np.random.default_rng(0).normal(size=(400, 4)).astype("float32")
data, before = (x, (x[:, 0] > 0).astype(int)), dict(os.environ)
quick = {"partition": "iid", "num_clients": 4, "num_rounds": 1, "progress": False}
with chdir(sys.argv[1]):
    calls = {
        "simulate": lambda: engram.simulate(data, out="run", **quick),
        "compare": lambda: engram.compare(data, methods="fedavg", seeds=1, out="all", **quick),
        "tune": lambda: engram.tune(data, methods="ditto", trials=1, seeds=1, out="t", **quick),
        "load_run": lambda: engram.load_run("run").plot(),
        "export": lambda: engram.load_run("run", data).export(0),
        "load_comparison": lambda: engram.load_comparison("all").summary(),
    }
    for name, call in calls.items():
        call()
        left = {key: value for key, value in os.environ.items() if before.get(key) != value}
        assert not left, (name, left)
"""


@pytest.mark.processes
def test_no_call_leaves_anything_in_the_environment(tmp_path):
    known = ("GRPC_", "KMP_", "ORT_", "RAY_", "TORCHINDUCTOR_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(known)}
    words = [sys.executable, "-c", CALLS, str(tmp_path)]
    subprocess.run(words, env=environment, check=True)


def test_variables_that_imports_set_go_and_those_of_callers_stay(monkeypatch):
    monkeypatch.delenv("KMP_INIT_AT_FORK", raising=False)
    monkeypatch.setenv("GRPC_VERBOSITY", "debug")
    with own_modes():
        monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
        monkeypatch.setenv("OF_A_CALLER", "1")
    assert "KMP_INIT_AT_FORK" not in os.environ
    assert (os.environ["GRPC_VERBOSITY"], os.environ["OF_A_CALLER"]) == ("debug", "1")


def test_what_ray_says_of_its_own_start_is_told(monkeypatch):
    def init(*given, **more):
        raise RuntimeError("/dev/shm has 64 MB")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    with pytest.raises(Refused, match=r"Ray could not begin here, .*: /dev/shm has 64 MB$"):
        join("local")
    with pytest.raises(Refused, match=r"^ray must be the address of a cluster that a.*'auto'$"):
        join("auto")
