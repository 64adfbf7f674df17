"""A run goes on while its server's certificate is renewed, and its address and authority change."""

import shutil
import threading

import pytest

from engram.link.addresses import parse_address
from engram.link.credentials import read_node
from engram.link.keys import read_certificate
from engram.link.server.certificates import certificate_pem
from engram.link.server.renewal import renew_server
from engram.runs.record import RunRecord
from engram.server.stopping import stop_run
from engram.settings.errors import RunStopped
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation
from tests.link.server.test_live import shown
from tests.processes.support import wait_for
from tests.processes.test_federation import settings

pytestmark = pytest.mark.processes


def test_a_run_goes_on_while_everything_is_renewed(tmp_path):
    alone = {"num-clients": 1, "clients-per-round": 1, "min-clients": 1}
    experiment = settings(**alone, **{"num-rounds": 2000, "checkpoint-every": 1000})
    words, stopped, record = [], [], RunRecord(tmp_path / "run")

    def run(there):
        try:
            place = {"control": there.control, "on_word": words.append}
            run_deployed(experiment, tmp_path / "run", there.server, **place)
        except RunStopped as error:
            stopped.append(str(error))

    def more(what):
        last = record.rows()[-1]["round"]
        wait_for(lambda: record.rows()[-1]["round"] > last + 2, 60, what)

    with LoopbackFederation(tmp_path / "fed", clients=1) as there:
        going = threading.Thread(target=run, args=(there,), daemon=True)
        going.start()
        wait_for(lambda: len(record.rows()) > 2, 120, "two rounds")
        node = tmp_path / "fed" / "client-0"
        former = shutil.copy(node / "ca.crt", tmp_path / "former.crt")
        moved = f"localhost:{there.fleet}"
        renew_server(there.server, superlink=moved, authority=True, another_key=True)
        shutil.copy(former, node / "ca.crt")  # as if the site were on another machine
        new = tmp_path / "new.crt"
        new.write_bytes(certificate_pem(read_certificate(there.server / "ca.crt")))
        renewed = read_certificate(there.server / "server.crt")
        for port in (there.fleet, parse_address(there.control, "control").port):
            for root in (former, new):
                assert shown(port, root=root) == renewed
        more("rounds over the connections of before")
        written = ("ca.crt", new), ("least.crt", there.server / "least.crt")

        def knows():
            texts = [(node / n).is_file() and (node / n).read_bytes() for n, _ in written]
            same = texts == [path.read_bytes() for _, path in written]
            return same and read_node(node).superlink == moved

        wait_for(knows, 30, "the authority, the key and the address")
        assert len([word for word in words if "starting" in word]) == 1  # no coordinator died
        renew_server(there.server)  # which a coordinator of before may have to begin anew
        assert (there.server / "ca.crt").read_bytes() == new.read_bytes()  # the former has ended
        there.kill("client-0")
        there.start("client-0")
        more("rounds over connections of now")
        stop_run(there.server, control=there.control)
        going.join(120)
        log = there.log("client-0").read_text()
    assert f"connecting to the SuperLink at {moved}" in log
    assert len(stopped) == 1
    assert "ended after round" in stopped[0]
