"""Both sides of an experiment as Flower apps, without Flower's processes."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import nn

import engram
from engram.settings.errors import REFUSED, Refused
from engram.settings.plugins import plugins
from engram.wire.flower import HostGrid, from_flower
from engram.wire.roster import read_entry
from engram.wire.wire import CONFIG, ROSTER_QUERY, SETTINGS
from tests.support import small, write_plug_in

pytestmark = pytest.mark.usefixtures("plug_ins")

APPS = """
import engram, numpy, torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 4), nn.Dropout(0.2), nn.Tanh(), nn.Linear(4, 1))

def rows(seed):
    x = numpy.random.default_rng(seed).normal(size=(40, 3)).astype("float32")
    return x, x.sum(axis=1)

given = dict(
    data={"park": rows(1), "lake": rows(2), "hill": rows(3)}, method="pfedme", model=Net,
    loss=nn.functional.huber_loss, metrics=["mae", "r2"], eta=0.1, eval_every=3,
)
client = engram.make_client_app(__name__, **given)
server = engram.make_server_app(__name__, **given)
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    """Returns a module that is the caller's."""
    write_plug_in(tmp_path / "mine.py", "mine")
    monkeypatch.syspath_prepend(tmp_path)
    HostGrid(None)  # so that this process makes messages
    return "mine"


def described(app, run_config, settings=""):
    """Returns a node's description of its clients, as Flower's message."""
    content = RecordDict({CONFIG: ConfigRecord({SETTINGS: settings})})
    message = Message(content, dst_node_id=7, message_type=ROSTER_QUERY)
    config = {"partition-id": 1, "num-partitions": 2}
    return app(message, Context(1, 7, config, RecordDict(), run_config))


class Net(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)


def test_data_networks_and_losses_are_given_as_they_are(module):
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20 + k, 3)), rng.normal(size=20 + k)) for k in range(3)]
    loss = nn.functional.huber_loss
    app = engram.make_client_app(module, data, method="fedavg", model=Net, loss=loss, eta=0.3)
    assert [name.rpartition("/")[2] for name in plugins()] == ["mine"]
    entry = read_entry(from_flower(described(app, {}).content))
    assert entry.clients == {1: 10}
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
