"""The board over a federation of real processes: who is there, and what the run waits for."""

import threading

import pytest

from engram.runs.record import RunRecord
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation
from engram.studio.live import Federation, federation
from engram.studio.run_index import RunIndex
from tests.processes.support import wait_for
from tests.processes.test_federation import CLIENTS, settings
from tests.studio.test_board import said

pytestmark = pytest.mark.processes


def test_the_page_of_a_live_federation_says_who_is_there_and_how_far_it_is(tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    with LoopbackFederation(tmp_path / "fed", clients=CLIENTS) as there:
        experiment = settings(**{"num-rounds": 40, "eval-every": 10})
        going = threading.Thread(
            daemon=True,
            target=run_deployed,
            args=(experiment, runs / "live", there.server),
            kwargs={"control": there.control, "on_trouble": print},
        )
        going.start()
        live, index = Federation(there.server, there.control), RunIndex(runs)

        def page():
            return said(federation(index, live))

        words = ["of 40 rounds are done", "nodes have answered", "at work"]
        words += [f"client {client}" for client in range(CLIENTS)]

        def all_told():
            text = page()
            online = text.count('"online"') == CLIENTS
            return online and all(word in text for word in words)

        wait_for(all_told, 120, "a page of nodes on line, and of a round in progress")
        going.join(300)
    record = RunRecord.open(runs / "live")
    assert record.results is not None
    assert "No run of" in page()
