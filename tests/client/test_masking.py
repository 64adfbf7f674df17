"""Keys by which a node knows others, and what its policy and its file of rounds refuse."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from client.admission import of_now, of_settings
from client.hosts import Opening, host_of
from client.masking import MaskingHost
from client.memory import RamStore
from client.parties import Identity, Parties, of_node, registered
from client.policy import USUAL
from federation.clock import now
from federation.errors import Refused
from federation.keys import same_key
from federation.wire import CONFIG, SECURE_QUERY
from server.certificates import node_key_files
from simulations.grid import InProcessGrid
from tests.support import small


def secure(**special):
    return small(method="fedavg", clip=0.3, aggregation="secure", **special)


@pytest.fixture
def folder(tmp_path):
    """A client's folder, with its own key and that of client 1."""
    (tmp_path / "clients").mkdir()
    for name, path in (("fed/client-0", "client"), ("fed/client-1", "clients/client-1")):
        private, public = node_key_files(name)
        (tmp_path / f"{path}.key").write_bytes(private)
        (tmp_path / f"{path}.key").chmod(0o600)
        (tmp_path / f"{path}.pub").write_bytes(public)
    return tmp_path


def test_a_node_signs_by_its_folders_key_and_knows_those_that_it_was_brought(folder):
    found = of_node(folder, 0)
    assert found.identity(None).party == 0
    own = found.identity(None).key.public_key()
    assert not same_key(own, found.registry(1))
    with pytest.raises(Refused, match="this site has no key of client-2, and cannot tell it"):
        registered(folder, 2)
    with pytest.raises(Refused, match="was started without identity"):
        of_node(None, 0)


def test_a_policy_may_ask_for_sums_and_their_stages_are_no_rounds():
    policy = USUAL.model_copy(update={"secure": 3, "rounds_a_day": 1})
    plain = small(method="fedavg", clip=0.3)
    (told,) = of_settings(policy, plain, own=True)
    assert told == "aggregation must be secure, for sums of 3 sites or more, got plain"
    assert [*of_settings(policy, secure(), own=True)] == []
    assert [*of_now(policy, SECURE_QUERY, 1, now())] == []
    assert [*of_now(policy, MessageType.TRAIN, 1, now())] != []


def of_key(key):
    return lambda request: Identity(0, key), lambda party: key.public_key()


def keys_of(host, **config):
    """Asks a host for a round's keys; returns its error's words, or nothing."""
    asked = {
        "stage": "keys",
        "training": "t",
        "server-round": 3,
        "parties-asked": 4,
        "clients-asked": 4,
        "most-examples": 1,
    }
    grid = InProcessGrid(host, [[0]])
    content = RecordDict({CONFIG: ConfigRecord(asked | config)})
    message = Message(content, dst_node_id=1, message_type=SECURE_QUERY)
    (reply,) = grid.send_and_receive([message])
    return reply.error.reason if reply.has_error() else ""


def test_a_node_refuses_rounds_that_it_has_helped_to_unmask_after_a_restart_too(tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    inner, noted = host_of(Opening(secure(), RamStore())), tmp_path / "unmasked"

    def host():
        return MaskingHost(inner, Parties(*of_key(key)), least=3, noted=noted)

    assert keys_of(host()) == ""
    noted.write_text("3")
    assert keys_of(host()).startswith("round must be above 3, whose sum client-0 has helped")
    assert keys_of(host(), **{"server-round": 4}) == ""
    noted.write_text("")
    assert "cannot read unmasked" in keys_of(host(), **{"server-round": 4})


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"parties-asked": 2, "clients-asked": 2}, "sums must be of 3 sites or more, and 2 of 2"),
        ({"parties-asked": 1}, "sums must be of 3 sites or more, and 1 of 1"),
        ({"clients-asked": 3}, "clients must be at least 4"),
        ({"clients-asked": 2**20}, "clients must be in 1..65536"),
        ({"most-examples": 0}, "most-examples must be 1 or more"),
        ({"stage": "all"}, "stage must be one of keys, shares, survivors, unmask"),
        ({"parties-asked": "4"}, "parties-asked must be a whole number"),
    ],
    ids=str,
)
def test_impossible_terms_are_refused(config, told):
    host = MaskingHost(
        host_of(Opening(secure(), RamStore())),
        Parties(*of_key(ec.generate_private_key(ec.SECP256R1()))),
        least=3,
    )
    assert told in keys_of(host, **config)
