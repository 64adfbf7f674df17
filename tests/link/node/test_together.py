"""Nodes that share a process: each ends by itself, and their workers share memory."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from engram.cli.node_cli import app
from engram.link.node import fork_preload, worker
from engram.link.node.node import run_together
from engram.link.node.worker import Worker
from engram.settings.errors import Refused


def test_all_run_at_once_until_all_have_ended():
    meet, ended = threading.Barrier(3), []

    def run(name):
        meet.wait(20)
        ended.append(name)

    run_together({name: lambda name=name: run(name) for name in "abc"})
    assert sorted(ended) == ["a", "b", "c"]


def test_a_node_that_ends_by_an_error_leaves_the_others_alone(caplog):
    failed, ended = threading.Event(), []

    def fail():
        failed.set()
        raise Refused("its key is not registered")

    def run():
        assert failed.wait(20)
        ended.append("b")

    with pytest.raises(Refused, match="its key is not registered"):
        run_together({"fed/a": fail, "fed/b": run})
    assert ended == ["b"]
    assert "fed/a has ended: its key is not registered" in caplog.text


def test_a_signal_that_another_thread_gets_is_handled_at_once():
    stop, seconds = threading.Event(), []

    def run():
        begun = time.monotonic()
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        assert stop.wait(20)
        seconds.append(time.monotonic() - begun)

    before = signal.signal(signal.SIGUSR1, lambda *_: stop.set())
    try:
        run_together({"a": run, "b": lambda: stop.wait(20)})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seconds


@pytest.mark.parametrize("option", [["--state", "x"], ["--metrics-port", "9101"]])
def test_what_belongs_to_one_node_is_refused_for_several(option):
    done = CliRunner().invoke(app, ["node", "fed/client-0", "fed/client-1", *option])
    assert isinstance(done.exception, Refused)
    assert "must be given for one node, got 2 folders: start it by itself" in str(done.exception)


def private(process):
    """The MiB of a process's memory that are no longer shared with the one it was forked from."""
    return psutil.Process(process.pid).memory_full_info().uss / 2**20


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="private memory is Linux's")
def test_forked_workers_have_a_parent_in_common_and_little_of_their_own():
    assert [fork_preload.__name__] == worker._SHARED
    workers = [Worker({}, forked=True) for _ in range(3)]
    try:
        parents = {psutil.Process(w._process.pid).ppid() for w in workers}
        assert len(parents) == 1
        assert parents != {os.getpid()}
        # PyTorch alone, in a process of its own, takes 150 MiB and more.
        assert max(private(each._process) for each in workers) < 80
    finally:
        for each in workers:
            each.close()
