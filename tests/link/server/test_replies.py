"""Which replies a SuperLink takes: before a stand-in for Flower's Fleet API, and before that."""

import json
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from engram.link.flower import (
    Parcel,
    fleet_pb2,
    message_pb2,
    name_message,
    node_context,
    node_pb2,
    pack,
)
from engram.link.node.fleet import Fleet as Node
from engram.link.node.fleet import RunOver
from engram.link.server.superlink import compact
from engram.server.replies import GuardedFleet
from engram.settings.errors import REFUSED, UNUSABLE
from tests.link import messages
from tests.samples import entry

NODE, OTHER = 7, 8


class Aborted(Exception):
    """What a call ends with."""


class Context:
    def is_active(self):
        return True

    def abort(self, code, details):
        assert code == grpc.StatusCode.PERMISSION_DENIED  # at which a node drops its reply
        problem = json.loads(details)
        assert problem["code"] == REFUSED
        raise Aborted(problem["public_message"])


def question(node=NODE, run_id=1):
    return messages.question(node=node, run_id=run_id, created_at=time.time() - 1)


def answer(asked, *sizes):
    """A reply with a record of each size."""
    content = RecordDict({f"r{i}": ConfigRecord({"x": bytes(n)}) for i, n in enumerate(sizes)})
    node_context(asked.metadata.run_id, asked.metadata.dst_node_id, {}, {})
    return pack(Message(content, reply_to=asked))


def push(parcel, node=NODE, *, times=1, trees=1):
    return fleet_pb2.PushMessagesRequest(
        node=node_pb2.Node(node_id=node),
        messages_list=[message_pb2.Message.FromString(parcel.header)] * times,
        message_object_trees=[message_pb2.ObjectTree.FromString(parcel.tree)] * trees,
    )


def part(name, content, session, node=NODE, run_id=1):
    whose = {"node": node_pb2.Node(node_id=node), "run_id": run_id, "session_id": session}
    return message_pb2.PushObjectRequest(object_id=name, object_content=content, **whose)


class Fleet:
    """Flower's, as far as it is asked: it takes everything, and counts who is at it at once."""

    def __init__(self):
        self.pushed, self.parts, self.stores = [], [], True
        self.busy = self.busiest = 0
        self.state_factory = SimpleNamespace(state=lambda: self)
        self.forgotten = []

    def PullMessages(self, *_):  # noqa: N802
        return "pulled"

    def PushMessages(self, request, _):  # noqa: N802
        self.pushed.append(request)
        names = Parcel(b"", request.message_object_trees[0].SerializeToString(), {})
        tree = message_pb2.ObjectTree.FromString(names.tree)
        return SimpleNamespace(
            objects_to_push=[tree.object_id], session_id=f"session {len(self.pushed)}"
        )

    def PushObject(self, request, _):  # noqa: N802
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        time.sleep(0.002)
        self.parts.append(request)
        self.busy -= 1
        return SimpleNamespace(stored=self.stores)

    def _cleanup_push_session(self, session, *, cleanup_messages):
        assert cleanup_messages
        self.forgotten.append(session)


@pytest.fixture
def fleet():
    return Fleet()


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    """Sets how many parts a reply may have."""
    return partial(monkeypatch.setattr, "engram.server.replies._MOST_PARTS")


def guarded(fleet):
    return GuardedFleet(fleet, 1)


def error_of(request):
    (header,) = request.messages_list
    assert header.HasField("error")
    return header.error


def test_a_reply_passes(fleet):
    guard, parcel = guarded(fleet), answer(question(), 3, 4)
    session = guard.PushMessages(push(parcel), Context()).session_id
    for name, content in parcel.objects.items():
        assert guard.PushObject(part(name, content, session), Context()).stored
    assert [request.object_id for request in fleet.parts] == list(parcel.objects)
    assert guard.PullMessages(None, Context()) == "pulled"


@pytest.mark.parametrize("count", [7, 9])
def test_a_reply_of_many_parts_is_refused_before_anything_of_it_is_written(fleet, parts, count):
    parts(9)
    asked = question()
    parcel = answer(asked, *range(count))
    if count == 7:  # a message, its records, and each of them
        guarded(fleet).PushMessages(push(parcel), Context())
        return
    with pytest.raises(Aborted, match="at most 9 parts, got 11"):
        guarded(fleet).PushMessages(push(parcel), Context())
    (instead,) = fleet.pushed
    assert error_of(instead).code == UNUSABLE
    assert "does not take its reply: it must have at most 9 parts" in error_of(instead).reason
    metadata = instead.messages_list[0].metadata
    assert metadata.reply_to_message_id == asked.metadata.message_id
    assert metadata.src_node_id == NODE
    (stored,) = fleet.parts
    assert stored.session_id == "session 1"
    assert len(stored.object_content) < 1000


def shared(depth):
    """A tree that names twice whatever is in it: with 2^depth parts, of `depth` different ones."""
    tree = message_pb2.ObjectTree(object_id=f"{depth:064}")
    for _ in range(2 if depth else 0):
        tree.children.append(shared(depth - 1))
    return tree


def test_a_part_counts_as_often_as_it_is_named(fleet):
    request = push(answer(question()))
    tree = shared(9)
    request.message_object_trees[0].CopyFrom(tree)
    request.messages_list[0].metadata.message_id = tree.object_id
    with pytest.raises(Aborted, match="at most 1000 parts, got 1023"):
        guarded(fleet).PushMessages(request, Context())


def in_anothers_name(request):
    request.messages_list[0].metadata.src_node_id = OTHER


def as_the_superlink(request):
    """What a node would send to have another one train for it."""
    request.messages_list[0].metadata.src_node_id = 1
    request.messages_list[0].metadata.reply_to_message_id = ""


def to_nothing(request):
    request.messages_list[0].metadata.reply_to_message_id = ""


def of_another_name(request):
    request.message_object_trees[0].object_id = "0" * 64


def of_many_words(request):
    request.messages_list[0].error.reason = "x" * 2**20


def test_what_no_honest_reply_is_like_is_refused(fleet):
    for spoil, says in [
        (in_anothers_name, "in its own name"),
        (as_the_superlink, "in its own name"),
        (to_nothing, "a node must answer"),
        (of_another_name, "must be named for its content"),
        (of_many_words, "header must have at most 1048576 bytes"),
    ]:
        with entry(spoil, says):
            request = push(answer(question(), 1))
            spoil(request)
            with pytest.raises(Aborted, match=says):
                guarded(fleet).PushMessages(request, Context())
            assert not fleet.pushed


def test_one_reply_at_a_time(fleet):
    for times, trees in [(0, 0), (2, 2), (1, 2), (2, 1), (1, 0)]:
        with entry(times, trees):
            request = push(answer(question(), 1), times=times, trees=trees)
            with pytest.raises(Aborted, match=f"one reply must be pushed at a time, got {times}"):
                guarded(fleet).PushMessages(request, Context())
            assert not fleet.pushed


def test_a_large_reply_is_deleted_and_answered_with_an_error(fleet):
    guard, parcel = guarded(fleet), answer(question(), 1)
    session = guard.PushMessages(push(parcel), Context()).session_id
    for _ in range(4):
        guard.PushObject(part("0" * 64, bytes(2**18), session), Context())
    with pytest.raises(Aborted, match=r"at most 1 MiB, and has more \(--max-reply\)"):
        guard.PushObject(part("0" * 64, b"x", session), Context())
    assert fleet.forgotten == [session]
    assert error_of(fleet.pushed[-1]).code == UNUSABLE
    stored = len(fleet.parts)
    with pytest.raises(Aborted, match="belong to the node"):
        guard.PushObject(part("0" * 64, b"x", session), Context())
    assert len(fleet.parts) == stored


def test_a_reply_that_is_announced_again_has_no_more_room(fleet):
    guard, parcel = guarded(fleet), answer(question(), 1)
    for _ in range(4):
        session = guard.PushMessages(push(parcel), Context()).session_id
        guard.PushObject(part("0" * 64, bytes(2**18), session), Context())
    with pytest.raises(Aborted, match="at most 1 MiB"):
        guard.PushObject(part("0" * 64, b"x", session), Context())
    other = answer(question(), 2)
    session = guard.PushMessages(push(other), Context()).session_id
    guard.PushObject(part("0" * 64, bytes(2**18), session), Context())


def test_a_push_that_its_node_has_given_up_takes_no_newer_ones_place(fleet):
    # It waits for others' parts to be stored; meanwhile its deadline passes, and the node connects
    # again, is asked again, and pushes another reply.
    guard, late = guarded(fleet), Context()
    guard._storing.acquire()
    pushing = threading.Thread(
        target=guard.PushMessages, args=(push(answer(question(), 1)), late), daemon=True
    )
    pushing.start()
    late.is_active = lambda: False
    guard._storing.release()
    session = guard.PushMessages(push(answer(question(), 2)), Context()).session_id
    pushing.join(10)
    assert len(fleet.pushed) == 1
    assert guard.PushObject(part("0" * 64, b"x", session), Context()).stored


def test_what_is_not_stored_takes_no_room(fleet):
    guard = guarded(fleet)
    session = guard.PushMessages(push(answer(question(), 1)), Context()).session_id
    fleet.stores = False
    for _ in range(9):
        assert not guard.PushObject(part("0" * 64, bytes(2**18), session), Context()).stored


def test_a_part_that_was_not_announced_is_refused(fleet):
    for session, node in [("", NODE), ("mine", NODE), ("session 1", OTHER)]:
        with entry(session, node):
            guard = guarded(fleet)
            guard.PushMessages(push(answer(question(), 1)), Context())
            with pytest.raises(Aborted, match="a part must belong to the node"):
                guard.PushObject(part("0" * 64, b"x", session, node), Context())
            assert not fleet.parts


def test_one_after_another_is_stored(fleet):
    guard = guarded(fleet)
    session = guard.PushMessages(push(answer(question(), 1)), Context()).session_id
    senders = [
        threading.Thread(target=guard.PushObject, args=(part("0" * 64, b"x", session), Context()))
        for _ in range(8)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert (len(fleet.parts), fleet.busiest) == (8, 1)


class Answer(grpc.RpcError):
    """A call that ended otherwise than well."""

    def __init__(self, code, details):
        self.code, self.details = lambda: code, lambda: details


def test_a_node_drops_a_reply_that_is_refused_and_says_why(fleet, parts):
    parts(1)

    class Told(Context):
        def abort(self, code, details):
            raise Answer(code, details)

    with pytest.raises(Answer) as told:
        guarded(fleet).PushMessages(push(answer(question(), 1)), Told())
    credentials = SimpleNamespace(
        superlink="127.0.0.1:9092", private_key=Path("client.key"), root_certificate=None
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engram.link.node.fleet.read_node_key", lambda _: None)
        node = Node(credentials)
    error = node._explain(told.value)
    assert isinstance(error, RunOver)
    assert "at most 1 parts, got 3" in str(error)
    large = "SERVER: Received message larger than max (200000174 vs. 16777216)"
    error = node._explain(Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, large))
    assert isinstance(error, RunOver)
    assert large in str(error)


# --- With Flower's own ------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path, monkeypatch):
    """Flower's Fleet API on a database, with a run and a node; what the node is asked."""
    from flwr.server.superlink.fleet.grpc_rere import fleet_servicer
    from flwr.supercore.constant import NOOP_FEDERATION_ID
    from flwr.superlink.config_loader import (
        get_federation_manager,
        get_objectstore_linkstate_factories,
    )

    compact(tmp_path / "superlink.db")
    made = get_objectstore_linkstate_factories(
        str(tmp_path / "superlink.db"), get_federation_manager()
    )
    handlers = getattr(fleet_servicer, "fleet_handlers", None) or fleet_servicer.message_handler
    monkeypatch.setattr(handlers, "check_abort", lambda *_: None)
    state = made[1].state()
    node = state.create_node("aid", "name", b"key", 30)
    assert state.activate_node(node, 30)
    run = state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, "aid", "flwr-serverapp")
    asked = question(node, run)
    asked.metadata.__dict__["_src_node_id"] = 1
    name_message(asked, asked.object_id)
    assert state.store_message_ins(asked)
    fleet = fleet_servicer.FleetServicer(made[1], made[0], enable_supernode_auth=True)
    return SimpleNamespace(fleet=fleet, state=state, asked=asked, node=node, run=run)


def replies(real):
    (found,) = real.state.get_message_res({real.asked.metadata.message_id}, real.run)
    return found


def test_flower_stores_an_error_in_place_of_many_parts(real, parts):
    parts(10)
    guard, parcel = guarded(real.fleet), answer(real.asked, *range(20))
    with pytest.raises(Aborted, match="at most 10 parts, got 22"):
        guard.PushMessages(push(parcel, real.node), Context())
    assert len(real.fleet.objectstore_factory.store()) == 1
    assert "it must have at most 10 parts, got 22" in replies(real).error.reason


def test_flower_stores_an_error_in_place_of_a_large_reply_and_forgets_that(real, tmp_path):
    guard, parcel = guarded(real.fleet), answer(real.asked, 2**19, 2**19 + 1, 2**19 + 2)
    session = guard.PushMessages(push(parcel, real.node), Context()).session_id
    with pytest.raises(Aborted, match="at most 1 MiB"):
        send(guard, real, parcel, session)
    store = real.fleet.objectstore_factory.store()
    assert len(store) == 1
    found = replies(real)
    assert found.error.code == UNUSABLE
    assert "at most 1 MiB" in found.error.reason
    assert store.get(found.metadata.message_id)


def send(guard, real, parcel, session):
    for name, content in parcel.objects.items():
        assert guard.PushObject(part(name, content, session, real.node, real.run), Context()).stored


def test_flower_takes_an_honest_reply(real):
    guard, parcel = guarded(real.fleet), answer(real.asked, 2**18, 3)
    session = guard.PushMessages(push(parcel, real.node), Context()).session_id
    send(guard, real, parcel, session)
    assert not replies(real).has_error()
    assert len(real.fleet.objectstore_factory.store()) == len(parcel.objects)
