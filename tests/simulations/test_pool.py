"""Jobs here, in processes and on Ray: the same rows, each kept as soon as it is there."""

import _multiprocessing
import errno
import json
import os
import subprocess
import sys
import tempfile
from functools import partial

import pytest
import ray
from joblib.externals.loky import reusable_executor
from joblib.externals.loky.backend.process import LokyProcess

from engram.core.machine import cores
from engram.settings.errors import Refused, RunStopped
from engram.settings.fingerprint import source_root
from engram.simulations.job_pool import Pool, _do
from tests.link.wire.processes import until
from tests.samples import entry
from tests.simulations.jobs import alive, die, divide, refuse, square

JOBS = {f"job-{i}": partial(square, i) for i in range(4)}


def lines():
    told = {}

    def new_line(title, total):
        return lambda done, found: told.setdefault(title, []).append((done, total))

    return told, new_line


@pytest.mark.parametrize(
    "where",
    [
        {"processes": 1},
        pytest.param({"processes": 2}, marks=pytest.mark.processes),
        pytest.param({"ray": "local"}, marks=pytest.mark.processes),
    ],
    ids=str,
)
def test_rows_come_in_the_order_of_jobs_wherever_they_are_done(
    tmp_path, where, request, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(source_root()))  # Ray's workers find these tests, too
    told, new_line = lines()
    request.addfinalizer(ray.shutdown)  # which does nothing where it was not used
    rows = Pool(tmp_path, new_line=new_line, **where).run(JOBS)
    assert rows == [{"number": i, "errors": [i**2]} for i in range(4)]
    assert {path.stem for path in tmp_path.iterdir()} == JOBS.keys()
    for name in JOBS:
        assert told[name][-1] == (2, 2)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (refuse, Refused, "^no$"),
        (divide, ZeroDivisionError, "division by zero"),
        (die, RunStopped, r"a process was lost; .*SIGKILL.*; what is done is kept: resume"),
    ],
)
def test_what_is_done_is_kept_if_another_job_fails(tmp_path, bad, error, message):
    pool = Pool(tmp_path, processes=2)
    with pytest.raises(error, match=message):
        pool.run({**JOBS, "bad": bad})
    assert pool.left(JOBS).keys() < JOBS.keys()
    assert not (tmp_path / "bad.json").exists()


@pytest.mark.processes
def test_processes_end_with_their_owner_whether_they_work_or_wait(tmp_path):
    code = (
        "from functools import partial; from pathlib import Path\n"
        "from engram.simulations.job_pool import Pool\n"
        "from tests.simulations.jobs import sleep, square\n"
        "Pool(Path(), processes=2).run({'works': sleep, 'waits': partial(square, 2)})"
    )
    where = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(source_root())}}
    owner = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **where)
    until((tmp_path / "waits.json").is_file)
    owner.kill()
    owner.wait()
    until(lambda: not alive(owner.pid))


def test_a_job_that_is_done_is_not_done_again(tmp_path):
    (tmp_path / "job-1.json").write_text(json.dumps([{"errors": [5]}]))
    pool = Pool(tmp_path, processes=1)
    assert pool.left(JOBS).keys() == JOBS.keys() - {"job-1"}
    assert [row["errors"] for row in pool.run(JOBS)] == [[0], [5], [4], [9]]


def test_a_damaged_file_is_refused(tmp_path):
    for text in ["[{", "[{}]", "7", '[{"errors": []}]']:
        (tmp_path / "job-1.json").write_text(text)
        with entry(text), pytest.raises(Refused, match=r"job-1.json is damaged: remove it"):
            Pool(tmp_path, processes=1).run(JOBS)


def test_a_cluster_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(Refused, match="ray must be the address of a cluster that answers"):
        Pool(tmp_path, ray="127.0.0.1:1", begin=(tmp_path / "begun").mkdir).run(JOBS)
    assert list(tmp_path.iterdir()) == []


def fail(code):
    def begin(*args, **how):
        raise OSError(code, os.strerror(code))

    return begin


FULL, READ_ONLY, BUSY = errno.ENOSPC, errno.EROFS, errno.EAGAIN


@pytest.mark.parametrize(
    ("where", "name", "code"),
    [
        (_multiprocessing, "SemLock", FULL),  # /dev/shm is full
        (_multiprocessing, "SemLock", READ_ONLY),
        (tempfile, "mkdtemp", FULL),  # TMPDIR, and all that Python tries instead
        (LokyProcess, "start", BUSY),  # no more processes are allowed
    ],
)
def test_where_processes_cannot_begin_jobs_run_in_this_one(
    tmp_path, monkeypatch, capsys, where, name, code
):
    monkeypatch.setattr(reusable_executor, "_executor", None)  # with processes that have begun
    monkeypatch.setattr(where, name, fail(code))
    here = []  # which no other process can append to

    def job(number, report):
        here.append(number)
        return [{"errors": [number]}]

    jobs = {f"job-{i}": partial(job, i) for i in range(3)}
    begun = []
    pool = Pool(tmp_path, processes=2, begin=lambda: begun.append(1))
    assert pool.run(jobs) == [{"errors": [i]} for i in range(3)]
    assert (here, begun) == ([0, 1, 2], [1])
    _, said = capsys.readouterr()
    lines = [line for line in said.splitlines() if "cores that may be used" not in line]
    (line,) = lines
    assert line.startswith("engram: all runs in this process, since others ")
    assert line.endswith(os.strerror(code))


def test_progress_that_cannot_be_written_is_lost_alone(tmp_path):
    (tmp_path / "a").mkdir()  # in place of the file
    assert _do(tmp_path, None, "a", partial(square, 3)) == ("a", [{"number": 3, "errors": [9]}])


def test_jobs_without_rows_leave_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = []
    pool = Pool(None, processes=1)
    assert pool.run({"one": lambda report: ran.append(1) or []}) == []
    assert ran == [1]
    assert list(tmp_path.iterdir()) == []


def test_there_is_a_job_for_each_core_that_may_be_used(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert Pool(tmp_path).at_once == cores() == 1
    monkeypatch.setattr(_multiprocessing, "SemLock", fail(FULL))
    Pool(tmp_path, processes=2).run(JOBS)  # an explicit number stays, and is told
    assert "engram: 2 processes share the cores that may be used, 1\n" in capsys.readouterr().err


def test_ray_that_cannot_begin_here_is_refused_in_one_line(tmp_path, monkeypatch):
    given = {}

    def init(address, **how):
        given.update(how)
        raise Exception("The current node timed out\nduring startup")

    monkeypatch.setattr(ray, "init", init)
    why = (
        r"^Ray could not begin here, where it needs /dev/shm and /tmp: The .*out\\nduring startup$"
    )
    with pytest.raises(Refused, match=why):
        Pool(tmp_path, ray="local").run(JOBS)
    assert given["num_cpus"] == cores()
    assert list(tmp_path.iterdir()) == []
