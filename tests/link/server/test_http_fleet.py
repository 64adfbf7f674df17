"""Nodes' calls over HTTP: what is refused before it is read, and what an app gets of the rest."""

import asyncio
import json

from engram.link.server.http_fleet import HttpFleet
from engram.settings.errors import REFUSED
from tests.samples import entry

MOST = 100
PUSH = "/v1/fleet/push-object"


class App:
    """An app by ASGI that reads its calls to the end."""

    def __init__(self):
        self.got = []

    async def __call__(self, scope, receive, send):
        event = await receive()
        self.got.append((scope["path"], event["body"], event["more_body"]))
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def call(*chunks, path=PUSH, fault="", headers=(), gone=False):
    """Makes a call whose body comes in chunks; returns its answer, what is unread, what app got."""
    app, answer = App(), []
    events = [{"type": "http.request", "body": c, "more_body": True} for c in chunks]
    events[-1]["more_body"] = gone
    events.append({"type": "http.disconnect"})

    async def receive():
        return events.pop(0)

    async def send(event):
        answer.append(event)

    scope = {"type": "http", "path": path, "headers": [*headers]}
    asyncio.run(HttpFleet(app, lambda headers: fault, MOST)(scope, receive, send))
    return answer, len(events), app.got


def test_a_call_within_the_limit_is_passed_on_whole():
    for chunks in [[b""], [b"x" * MOST], [b"x" * (MOST - 1), b"x"]]:
        with entry(chunks):
            (start, _), unread, got = call(*chunks)
            assert (start["status"], unread) == (200, 0)
            assert got == [(PUSH, b"".join(chunks), False)]


def test_a_body_that_is_said_to_be_too_long_is_not_read():
    (start, body), unread, got = call(b"x", headers=[(b"content-length", b"101")])
    assert (start["status"], unread, got) == (413, 2, [])
    reason = "a call must have at most 100 bytes, and has more"
    assert json.loads(body["body"]) == {"code": REFUSED, "detail": reason}
    assert (b"connection", b"close") in start["headers"]


def test_a_body_that_is_too_long_is_read_no_further():
    for said in [[], [(b"content-length", b"7")], [(b"content-length", b"-1")]]:
        with entry(said):
            (start, _), unread, got = call(b"x" * 60, b"x" * 41, b"x" * 60, b"x", headers=said)
            assert (start["status"], unread, got) == (413, 3, [])


def test_who_is_no_node_is_refused_unread():
    (start, body), unread, got = call(b"x", fault="its key is not registered")
    assert (start["status"], unread, got) == (401, 2, [])
    reason = "only a node of this SuperLink may call it: its key is not registered"
    assert json.loads(body["body"]) == {"code": REFUSED, "detail": reason}


def test_half_a_call_is_not_passed_on():
    _, unread, got = call(b"x" * 60, gone=True)
    assert (unread, got) == (0, [])


def test_what_nodes_do_not_call_is_left_alone():
    for path in ["/v1/control/start-run", "/v1/runtime/push-object", "/v1/fleet"]:
        with entry(path):
            (start, _), _, got = call(b"x" * 200, path=path, fault="no node")
            assert (start["status"], got) == (200, [(path, b"x" * 200, False)])
