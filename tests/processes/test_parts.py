"""Parts of a running SuperLink: they are watched, probed, and end with it."""

import os
import signal
import threading
import time

import psutil
import pytest

from engram.server.status import FLEET, STARTER, silent_parts
from engram.settings.errors import RunStopped
from engram.simulations import deployed
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation
from engram.sites.doctor import look_over
from tests.processes.support import wait_for
from tests.processes.test_federation import settings

pytestmark = pytest.mark.processes


def superexec(there):
    """The process that starts runs, once it has asked for one."""
    alive = there.server / "flwr" / STARTER
    began = alive.stat().st_mtime
    wait_for(lambda: alive.stat().st_mtime > began, 120, "a sign of life of what starts runs")
    (found,) = psutil.Process(there.processes["superlink"].pid).children()
    return found


def test_a_server_ends_with_status_1_when_what_starts_runs_has_died(tmp_path):
    with LoopbackFederation(tmp_path / "fed", clients=1) as there:
        superexec(there).terminate()
        assert there.processes["superlink"].wait(120) == 1
        said = there.log("superlink").read_text()
    assert "what starts runs has died (0): start this server again" in said


def test_a_run_that_nothing_starts_is_told_of_and_keeps_no_server_from_its_end(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(deployed, "_SAY", 1.0)
    alone = {"num-clients": 1, "clients-per-round": 1, "min-clients": 1}
    words, ended = [], []

    def run(there):
        try:
            place = {"control": there.control, "on_word": words.append, "patience": 0}
            run_deployed(settings(**alone), tmp_path / "run", there.server, **place)
        except RunStopped as error:
            ended.append(str(error))

    with LoopbackFederation(tmp_path / "fed", clients=1) as there:
        starter = superexec(there)
        assert silent_parts(there.server) == ""
        starter.suspend()
        going = threading.Thread(target=run, args=(there,), daemon=True)
        going.start()
        wait_for(lambda: any("coordinator: see" in word for word in words), 120, "a word")
        for name in (STARTER, FLEET):
            os.utime(there.server / "flwr" / name, (time.time() - 90,) * 2)
        found = look_over(there.server, control=there.control)
        (superlink,) = [each for each in found if each.about == "superlink"]
        assert not superlink.ok
        assert "no sign of life of what starts runs for 9" in superlink.text
        wait_for(lambda: "nodes" not in silent_parts(there.server), 60, "an answer to a node")
        there.processes["superlink"].send_signal(signal.SIGTERM)
        assert there.processes["superlink"].wait(25) == -signal.SIGTERM
        wait_for(lambda: not starter.is_running(), 10, "the end of what starts runs")
        going.join(120)
    assert len(ended) == 1
    assert words[-1] == f"waiting for the run's coordinator: see `engram doctor {there.server}`"
