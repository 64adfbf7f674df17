"""A node's keys of others and its refusals: by policy, former rounds, and their sums."""

import base64
import hashlib
from functools import partial
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.guards.secure.masking import MaskingHost
from engram.guards.secure.registry import REGISTRY, fingerprint, signed_registry
from engram.guards.secure.secure_parties import Parties, of_node
from engram.guards.secure.session import Session
from engram.guards.secure.signatures import Identity
from engram.guards.secure.site_registry import learn, registered
from engram.guards.secure.unmasked_sums import Sums
from engram.link.keys import read_public_key, same_key
from engram.link.node_config import NodeConfig
from engram.link.server.identity import add_client, new_client_key, sign_registry
from engram.link.server.membership import Membership
from engram.runs.run import Run
from engram.settings.errors import Refused, RunStopped
from engram.simulations.engine import simulate
from engram.simulations.grid import InProcessGrid
from engram.sites.policy import USUAL
from engram.sites.policy_checks import of_now, of_settings
from engram.strategies.running.secure_rounds import _registry
from engram.wire.clock import now
from engram.wire.messages import TRAIN, Question
from engram.wire.wire import CONFIG, SECURE_QUERY
from tests.guards.secure.test_secure import Between, experiment
from tests.link.server.federations import FED, make
from tests.samples import entry
from tests.support import assert_same, small


def secure(**special):
    return small(method="fedavg", clip=0.3, aggregation="secure", **special)


@pytest.fixture
def fed():
    """A federation of three, whose sites have no registry yet."""
    make(clients=3)
    return FED


def told(folder):
    return (folder / "server" / REGISTRY).read_bytes()


def test_a_node_signs_by_its_folders_key_and_knows_others_by_a_signed_registry(fed):
    own = fed / "client-0"
    found = of_node(NodeConfig(0, 3, identity=own), 3)
    assert found.identity(None).party == 0
    with pytest.raises(Refused, match="this site has no key of client-1 in a registry"):
        found.registry(1)
    grid = SimpleNamespace(membership=Membership(fed / "server", 3))
    found.learn(_registry(grid)[REGISTRY])
    assert (own / REGISTRY).read_bytes() == told(fed)
    for n in range(3):
        key = read_public_key(fed / f"client-{n}" / "client.pub")
        assert same_key(registered(own, n), key)
        assert same_key(found.identity(None).key.public_key(), key) == (n == 0)
    with pytest.raises(Refused, match="has no key of client-3 in its registry, SHA256:"):
        registered(own, 3)
    with pytest.raises(Refused, match="was started without identity"):
        of_node(NodeConfig(0, 3), 3)


def test_a_registry_that_the_authority_has_not_signed_is_not_taken(fed):
    signed, own = told(fed), fed / "client-0"
    stranger = ec.generate_private_key(ec.SECP256R1())
    keys = {n: (fed / f"client-{n}" / "client.pub").read_bytes() for n in range(3)}
    first, rest = signed.split(b"\n", 1)
    for data in (
        signed_registry(keys, stranger),
        rest,  # a member less
        first + b"\n" + signed,
        signed.rpartition(b"signature")[0],
        b"",
        b"\xff",
    ):
        with pytest.raises(Refused, match="signed by this federation's authority must come first"):
            learn(own, data)
        assert not (own / REGISTRY).exists()
    learn(own, signed)


def test_a_site_keeps_its_registry_whatever_is_signed_later(fed):
    own, first = fed / "client-0", told(fed)
    learn(own, first)
    add_client(fed)
    with pytest.raises(Refused, match=r"other keys than this site's, SHA256:.*, of client-3: "):
        learn(own, told(fed))
    new_client_key(fed, 1)
    with pytest.raises(Refused, match="of client-1, client-3: the site compares it"):
        learn(own, told(fed))
    assert (own / REGISTRY).read_bytes() == first
    learn(own, b"")  # a server that has none
    lines = first.splitlines(keepends=True)
    learn(own, b"".join(lines[1:]))  # one that has a member less
    (own / REGISTRY).unlink()
    learn(own, told(fed))
    assert (own / REGISTRY).read_bytes() == told(fed)


def test_a_registry_signed_again_has_the_same_fingerprint(fed):
    before = told(fed)
    again = sign_registry(fed / "server")
    assert told(fed) != before
    assert again == fingerprint(told(fed)) == fingerprint(before)
    assert again == fingerprint(before.rpartition(b"signature")[0])
    body = before.rpartition(b"signature")[0]
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    assert again == f"SHA256:{digest[:43]}"
    (fed / "ca.key").rename("ca.key")  # kept elsewhere
    assert sign_registry(fed / "server") == ""


def test_a_spoiled_registry_is_one_line(fed):
    for line in [b"client-0", b"client-x a b", b"client-0 ssh-rsa AAAA", b""]:
        with entry(line):
            own = fed / "client-0"
            (own / REGISTRY).write_bytes(line + b"\n")
            with pytest.raises(Refused, match="client-0/registry") as refused:
                registered(own, 0)
            assert "\n" not in str(refused.value)


def test_a_policy_may_ask_for_sums_and_their_stages_are_no_rounds():
    policy = USUAL.model_copy(update={"secure": 3, "rounds_a_day": 1})
    plain = small(method="fedavg", clip=0.3)
    (told,) = of_settings(policy, plain, own=True)
    assert told == "aggregation must be secure, for sums of 3 sites or more, got plain"
    assert [*of_settings(policy, secure(), own=True)] == []
    assert [*of_now(policy, SECURE_QUERY, 1, now())] == []
    assert [*of_now(policy, TRAIN, 1, now())] != []


def of_key(key):
    return lambda request: Identity(0, key), lambda party: key.public_key()


def keys_of(host, **config):
    """Asks a host for a round's keys; returns its error's words, or nothing."""
    asked = {"stage": "keys", "training": "t", "server-round": 3, "clients": [0]}
    asked |= {"parties-asked": [0, 1, 2, 3], "clients-asked": [1] * 4, "most-examples": 1}
    asked |= {"work": "", "model-digest": ""}
    grid = InProcessGrid(host, [[0]])
    content = {CONFIG: asked | config}
    question = Question(1, SECURE_QUERY, content)
    (reply,) = grid.ask([question], timeout=60)
    return reply.error.reason if reply.error else ""


def test_a_node_refuses_rounds_that_it_has_helped_to_unmask_after_a_restart_too(tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    inner, noted = host_of(Opening(secure(), RamStore())), tmp_path / "memory" / "t" / "unmasked"

    def host():
        return MaskingHost(inner, Parties(*of_key(key)), least=3, state=tmp_path)

    assert keys_of(host()) == ""
    noted.parent.mkdir(parents=True)
    noted.write_text("3")
    refusal = keys_of(host())
    assert refusal.startswith("round must be above 3, whose sum client-0 has helped")
    assert refusal.endswith("start a new run from this one's models, by --from")
    assert keys_of(host(), **{"server-round": 4}) == ""
    noted.write_text("")
    assert "cannot read memory/t/unmasked" in keys_of(host(), **{"server-round": 4})


def test_impossible_terms_are_refused():
    small_sum = "sums must be of 3 sites or more, and "
    for config, told in [
        ({"parties-asked": [0, 1], "clients-asked": [1] * 2}, f"{small_sum}2 of 2"),
        ({"parties-asked": [0], "clients-asked": [1]}, f"{small_sum}1 of 1"),
        # Of these, one may be lost.
        ({"parties-asked": [0, 1, 2], "clients-asked": [1] * 3}, f"{small_sum}2 of 3"),
        ({"clients-asked": [1, 1, 1]}, "clients-asked must be of the 4 parties, got 3"),
        ({"clients-asked": [1, 1, 1, 0]}, "clients must be 1 or more of each party"),
        ({"clients-asked": [1, 1, 1, 2**20]}, "clients must be in 1..65536"),
        ({"clients-asked": [2, 1, 1, 1]}, "clients-asked of client-0 must be 1, as asked, got 2"),
        ({"parties-asked": [1, 2, 3, 4]}, "clients-asked of client-0 must be 1, as asked, got 0"),
        ({"parties-asked": [0, 1, 1, 2]}, "parties must be in ascending order"),
        ({"clients": [0, 0], "clients-asked": [2, 1, 1, 1]}, "clients must be named once each"),
        ({"most-examples": 0}, "most-examples must be 1 or more"),
        ({"stage": "all"}, "stage must be one of keys, shares, survivors, unmask"),
        ({"parties-asked": "4"}, "parties-asked must be a list"),
    ]:
        with entry(config, told):
            host = MaskingHost(
                host_of(Opening(secure(secure_threshold=0.5), RamStore())),
                Parties(*of_key(ec.generate_private_key(ec.SECP256R1()))),
                least=3,
            )
            assert told in keys_of(host, **config)


@pytest.mark.parametrize(
    ("before", "after"),
    [([], []), ([3], [3]), ([], [3]), ([3], []), ([3], [4]), ([3], [3, 4]), ([], [*range(6)])],
)
def test_sums_from_one_model_are_over_the_same_sites(tmp_path, before, after):
    """Two runs by one seed begin from one model: the difference of their sums is of who differs."""
    hosts = []

    def through(host, gone):
        hosts.append(host)
        return Between(hosts[0], {"train": gone})

    e = experiment(aggregation="secure")
    simulate(e, tmp_path / "one", through=lambda host: through(host, before))
    again = partial(simulate, e, tmp_path / "other", through=lambda host: through(host, after))
    if before != after:
        with pytest.raises(
            RunStopped, match="once those are there, start the run again with the sa"
        ):
            again()
        resumed = e.model_copy(update={"resume": str(tmp_path / "other")})
        again = partial(simulate, resumed, tmp_path / "other", through=lambda h: through(h, before))
    again()
    one, other = (Run.open(tmp_path / n).load_checkpoint().model for n in ("one", "other"))
    assert_same(one, other)


def test_a_node_remembers_sums_after_a_restart(tmp_path):
    asked = ((0, 1), (1, 1), (2, 1))
    session = Session("1" * 16, 1, asked, 2, 1.0, most=5, model="a" * 64)
    Sums(tmp_path).note(0, session, [0], {0, 1})
    later = session._replace(training="2" * 16, number=7)
    Sums(tmp_path).check(0, later, [0], {0, 1})
    weights = later._replace(most=6)
    clients = later._replace(asked=((0, 1), (1, 2), (2, 1)))
    absent = later._replace(asked=((0, 1), (1, 1), (2, 3)))  # whose number of clients is not summed
    Sums(tmp_path).check(0, absent, [0], {0, 1})
    for terms, own, parties in (
        (weights, [0], {0, 1}),
        (clients, [0], {0, 1}),
        (later, [3], {0, 1}),
        (later, [0], {0, 1, 2}),
        (later, [0], {0, 2}),
    ):
        with pytest.raises(Refused, match="sites of a sum must be those of the first"):
            Sums(tmp_path).check(0, terms, own, parties)
        with pytest.raises(Refused, match="sites of a sum must be those of the first"):
            Sums(tmp_path).note(0, terms, own, parties)
    Sums(tmp_path).check(0, later._replace(model="b" * 64), [0], {0, 2})
    with pytest.raises(Refused, match="round must be above 1, whose sum client-0 has helped"):
        Sums(tmp_path).check(0, session)
