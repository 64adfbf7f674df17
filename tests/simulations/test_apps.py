"""Both sides of an experiment as Flower apps, without Flower's processes."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from torch import nn

import engram
from federation.errors import Refused
from federation.flower import local_run, node_context
from federation.plugins import plugins
from federation.roster import read_entry
from federation.wire import CONFIG, REFUSED, ROSTER_QUERY, SETTINGS
from tests.support import small, write_plug_in

pytestmark = pytest.mark.usefixtures("plug_ins")


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    """Returns a module that is the caller's."""
    write_plug_in(tmp_path / "mine.py", "mine")
    monkeypatch.syspath_prepend(tmp_path)
    local_run()
    return "mine"


def described(app, run_config, settings=""):
    """Returns what a node says of its clients."""
    content = RecordDict({CONFIG: ConfigRecord({SETTINGS: settings})})
    message = Message(content, dst_node_id=7, message_type=ROSTER_QUERY)
    config = {"partition-id": 1, "num-partitions": 2}
    return app(message, node_context(1, 7, config, run_config))


class Net(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)


def test_data_networks_and_losses_are_given_as_they_are(module):
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20 + k, 3)), rng.normal(size=20 + k)) for k in range(3)]
    loss = nn.functional.huber_loss
    app = engram.make_client_app(module, data, method="fedavg", model=Net, loss=loss, eta=0.3)
    assert [name.rpartition("/")[2] for name in plugins()] == ["mine"]
    entry = read_entry(described(app, {}).content)
    assert entry.clients == {1: 13}
    assert entry.kind.outputs == 1
    reply = described(app, {"model": "nothing"})  # what the run config says counts
    assert "model must be one of" in reply.error.reason


def test_a_server_with_other_settings_is_refused(module):
    app = engram.make_client_app(module, method="fedavg", eta=0.3)
    same, other = small(method="fedavg", eta=0.3), small(method="fedavg", eta=0.2)
    aside = {"num-rounds": 9, "data-dir": "/elsewhere", "timeout": 7.0}
    config = {k: v for k, v in same.to_config().items() if "eta" not in k} | aside
    assert not described(app, config, same.digest()).has_error()
    reply = described(app, config, other.digest())
    assert reply.error.code == REFUSED
    assert reply.error.reason.startswith("this node's settings are not the server's: write them")


def test_a_script_is_no_module():
    with pytest.raises(Refused, match="plug-in must be a Python module that is installed, or in"):
        engram.make_server_app("__main__")
