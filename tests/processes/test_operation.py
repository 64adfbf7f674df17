"""One node and its server in operation: stopped, renewed, watched, and ended when parts die."""

import contextlib
import json
import re
import shutil
import signal
import socket
import ssl
import threading

import httpx
import pytest
from cryptography import x509

from engram.link.credentials import read_node
from engram.link.keys import read_certificate
from engram.link.server.certificates import certificate_pem
from engram.link.server.renewal import renew_server
from engram.runs.run import Run
from engram.server.stopping import stop_run
from engram.settings.errors import EngramError, Refused, RunStopped
from engram.simulations import deployed
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation
from engram.sites.doctor import look_over
from tests.link.wire.processes import PATIENCE, free_port
from tests.processes.support import wait_for
from tests.processes.test_federation import run, settings

pytestmark = pytest.mark.processes

ALONE = {"num-clients": 1, "clients-per-round": 1, "min-clients": 1}
PORT = free_port()


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """One node that logs JSON and serves metrics; the last test but one ends its server."""
    folder = tmp_path_factory.mktemp("alone") / "fed"
    options = ["--log-json", "--metrics-port", str(PORT)]
    with LoopbackFederation(folder, clients=1, options=options) as shared:
        yield shared


def shown(port, root):
    """The certificate that a server shows to a new connection."""
    trust = ssl.create_default_context(cafile=root)
    trust.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
        trust.wrap_socket(connection, server_hostname="localhost") as wrapped,
    ):
        return x509.load_der_x509_certificate(wrapped.getpeercert(binary_form=True))


class Going:
    """A run in a thread, what is said of it, and why it has stopped."""

    def __init__(self, there, experiment, folder, **place):
        self.record, self.words, self.ended = Run(folder), [], []
        place |= {"on_word": self.words.append}

        def go():
            try:
                run_deployed(experiment, folder, there.server, **place)
            except (Refused, RunStopped) as error:
                self.ended.append(str(error))

        self._thread = threading.Thread(target=go, daemon=True)
        self._thread.start()

    @property
    def goes_on(self):
        return self._thread.is_alive()

    def wait_for_more(self, what):
        last = self.record.rows()[-1]["round"] if self.record.rows() else 0
        wait_for(lambda: len(self.record.rows()) > last + 3, what)

    def end(self):
        self._thread.join(PATIENCE)
        (told,) = self.ended
        return told


@pytest.fixture
def go(federation):
    """Starts runs, and stops at the end of a test that has failed what still goes on."""
    begun = []

    def go(experiment, folder, **place):
        begun.append(Going(federation, experiment, folder, **place))
        return begun[-1]

    yield go
    if any(each.goes_on for each in begun):
        with contextlib.suppress(EngramError):
            stop_run(federation.server)


def test_a_run_is_stopped_goes_on_and_is_in_the_logs(tmp_path, federation, go):
    experiment = settings(**ALONE, **{"num-rounds": 200, "checkpoint-every": 100})
    going = go(experiment, tmp_path / "run")
    going.wait_for_more("two rounds")
    number = stop_run(federation.server)
    told = going.end()
    with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", trust_env=False) as client:
        assert client.get("/healthz").text == "ok\n"
        metrics = client.get("/metrics").text
    assert int(float(re.search(r"^engram_messages_total (.*)$", metrics, re.M)[1])) > 3
    findings = {each.about: each for each in look_over(federation.server.parent / "client-0")}
    assert all(each.ok for each in findings.values()), findings
    said = federation.log("client-0").read_text()
    server = federation.log("superlink").read_text()
    last = int(re.match(r"ended after round (\d+), as `engram stop` asked for", told)[1])
    record = Run.open(tmp_path / "run")
    assert max(record.checkpoints()) == record.rows()[-1]["round"] == last < 200
    assert f"run {number}: its coordinator is starting" in going.words
    rounds = [json.loads(line) for line in said.splitlines() if '"train"' in line]
    assert [each["round"] for each in rounds][:2] == [1, 2]
    assert {each["run"] for each in rounds} == {int(number)}
    form = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ \[[\w.]+\] .+")
    (told,) = [line for line in server.splitlines() if not form.fullmatch(line)]
    assert told.startswith("server of fed: clients at 127.0.0.1:")


def test_work_that_nobody_waits_for_keeps_no_run_waiting(tmp_path, federation):
    alone = ALONE | {"num-rounds": 1}
    many = {"adapt-steps": 10**5, "hidden": "1024,1024"}  # minutes
    work = {"protocol": "few-shot", "timeout": 6.0, **many}
    with pytest.raises(RunStopped):
        run(federation, settings(**alone, **work), tmp_path / "endless")
    run(federation, settings(**alone), tmp_path / "next")
    said = federation.log("client-0").read_text()
    assert re.search(r"work for run \d+ ended after \d+ s: ", said)  # of its round, or its run


def test_a_run_goes_on_while_certificate_address_and_authority_are_renewed(
    tmp_path, federation, go
):
    there = federation
    experiment = settings(**ALONE, **{"num-rounds": 2000, "checkpoint-every": 1000})
    going = go(experiment, tmp_path / "run")
    going.wait_for_more("two rounds")
    node = there.server.parent / "client-0"
    former = shutil.copy(node / "ca.crt", tmp_path / "former.crt")
    moved = f"localhost:{there.fleet}"
    renew_server(there.server, superlink=moved, authority=True, another_key=True)
    shutil.copy(former, node / "ca.crt")  # as if the site were on another machine
    new = tmp_path / "new.crt"
    new.write_bytes(certificate_pem(read_certificate(there.server / "ca.crt")))
    renewed = read_certificate(there.server / "server.crt")
    for root in (former, new):
        assert shown(there.fleet, root=root) == renewed
    going.wait_for_more("rounds over the connections of before")
    written = ("ca.crt", new), ("least.crt", there.server / "least.crt")

    def knows():
        texts = [(node / n).is_file() and (node / n).read_bytes() for n, _ in written]
        same = texts == [path.read_bytes() for _, path in written]
        return same and read_node(node).superlink == moved

    wait_for(knows, "the authority, the key and the address")
    assert len([word for word in going.words if "starting" in word]) == 1  # no coordinator died
    renew_server(there.server)  # which a coordinator of before may have to begin anew
    assert (there.server / "ca.crt").read_bytes() == new.read_bytes()  # the former has ended
    there.kill("client-0")
    there.start("client-0")
    going.wait_for_more("rounds over connections of now")
    stop_run(there.server)
    assert "ended after round" in going.end()
    assert f"connecting to the server at {moved}" in there.log("client-0").read_text()


def test_a_server_that_ends_leaves_nothing_and_says_so(tmp_path, federation, go, monkeypatch):
    there = federation
    monkeypatch.setattr(deployed, "_STARTING", 0.1)
    there.processes["superlink"].send_signal(signal.SIGTERM)
    assert there.processes["superlink"].wait(PATIENCE) == 0
    found = {each.about: each for each in look_over(there.server)}
    assert "start it with `engram superlink" in found["superlink"].text
    going = go(settings(**ALONE), tmp_path / "run", patience=0.2)
    assert "start it with `engram superlink" in going.end()
    assert not [path for path in (there.server / "runs").iterdir() if any(path.rglob("*"))]
