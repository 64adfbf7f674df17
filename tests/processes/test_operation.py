"""A federation of real processes in operation: stopped, looked over, and its logs."""

import json
import re
import threading

import httpx
import pytest

from engram.runs.record import RunRecord
from engram.server.stopping import stop_run
from engram.settings.errors import RunStopped
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation
from engram.sites.doctor import look_over
from tests.processes.support import free_port, wait_for
from tests.processes.test_federation import settings

pytestmark = pytest.mark.processes


def test_a_run_is_stopped_goes_on_and_is_in_the_logs(tmp_path):
    alone = {"num-clients": 1, "clients-per-round": 1, "min-clients": 1}
    experiment = settings(**alone, **{"num-rounds": 200, "checkpoint-every": 100})
    words, ended = [], []

    def run(there):
        try:
            place = {"control": there.control, "on_word": words.append}
            run_deployed(experiment, tmp_path / "run", there.server, **place)
        except RunStopped as error:
            ended.append(str(error))

    with LoopbackFederation(tmp_path / "fed", clients=1) as there:
        there.options["client-0"] = ["--log-json", "--metrics-port", str(port := free_port())]
        there.kill("client-0")
        there.start("client-0")
        going = threading.Thread(target=run, args=(there,), daemon=True)
        going.start()
        wait_for(lambda: len(RunRecord(tmp_path / "run").rows()) > 2, 120, "two rounds")
        number = stop_run(there.server, control=there.control)
        going.join(120)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            assert client.get("/healthz").text == "ok\n"
            metrics = client.get("/metrics").text
        assert int(float(re.search(r"^engram_messages_total (.*)$", metrics, re.M)[1])) > 3
        findings = {each.about: each for each in look_over(tmp_path / "fed" / "client-0")}
        assert all(each.ok for each in findings.values()), findings
        said = there.log("client-0").read_text()
        server = there.log("superlink").read_text()
    (told,) = ended
    last = int(re.match(r"ended after round (\d+), as `engram stop` asked for", told)[1])
    record = RunRecord.open(tmp_path / "run")
    assert max(record.checkpoints()) == record.rows()[-1]["round"] == last < 200
    assert f"run {number}: its coordinator is starting" in words
    rounds = [json.loads(line) for line in said.splitlines() if '"train"' in line]
    assert [each["round"] for each in rounds][:2] == [1, 2]
    assert {each["run"] for each in rounds} == {int(number)}
    form = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ \[[\w.]+\] .+")
    assert [line for line in server.splitlines() if not form.fullmatch(line)] == []
