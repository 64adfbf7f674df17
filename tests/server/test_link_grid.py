"""A grid over a link: what is asked, by which names, and what becomes of replies."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engram.link.questions import Member, Reply
from engram.link.questions import Question as Asking
from engram.link.records import from_contents, to_parts
from engram.server.link_grid import LinkGrid
from engram.settings.errors import AWAITED, BUSY, REFUSED, UNUSABLE
from engram.settings.experiment import Experiment
from engram.wire import messages
from engram.wire.messages import RAISED, TRAIN, Question
from engram.wire.wire import ARRAYS, CLIENTS, CONFIG, DIVERGED, ROSTER_QUERY
from tests.server.links import Clock

MODEL = {"w": torch.arange(3000.0)}  # 12 000 bytes


class Scripted:
    """A link that notes what is asked, and gives the replies that it is given."""

    def __init__(self) -> None:
        self.asked: list[tuple[Asking, float]] = []
        self.given: list[Reply] = []
        self.waits: list[float] = []

    def members(self) -> dict[str, Member]:
        return {"client-0": Member(True), "client-1": Member(False), "client-2": Member(True)}

    def ask(self, questions: list[Asking], *, seconds: float) -> None:
        self.asked += [(question, seconds) for question in questions]

    def replies(self, *, seconds: float) -> Iterator[Reply]:
        self.waits.append(seconds)
        while self.given:
            yield self.given.pop(0)


def grid_of(link: Scripted, **place: str) -> LinkGrid:
    return LinkGrid(link, 17, Experiment.from_config(place), Path("runs/one"))


def train(node: int, number: int = 3, **config: Any) -> Question:
    content = {ARRAYS: MODEL, CONFIG: {"server-round": number, **config}}
    return Question(node, TRAIN, content)


def answer(grid: LinkGrid, link: Scripted, error: str = "", **more: Any) -> list[messages.Reply]:
    """Asks a node, and has it reply so; returns what the grid makes of it."""
    grid.push([question := train(1)], seconds=60.0)
    reply = Reply("client-0", question.name, {}, memoryview(b""), error, "because")
    link.given.append(reply._replace(**more))
    return grid.pull([question])


def test_nodes_on_line_are_known_by_number_and_name() -> None:
    grid = grid_of(Scripted())
    assert grid.run_id == 17
    assert [n.node_id for n in grid.get_nodes()] == [1, 3]
    assert [(n.node_id, n.name, n.last_activated_at) for n in grid.get_nodes()] == [
        (1, "client-0", ""),
        (3, "client-2", ""),
    ]


def test_messages_of_a_round_share_its_model_and_the_settings() -> None:
    grid = grid_of(link := Scripted())
    grid.push([train(1, clients=[0, 3]), train(3, clients=[2])], seconds=60.0)
    (first, seconds), (second, _) = link.asked
    assert seconds == 60
    assert (first.node, second.node, first.kind) == ("client-0", "client-2", "train")
    assert first.contents[0] is second.contents[0]
    assert first.contents[1] is second.contents[1]
    settings = json.loads(json.loads(b"".join(first.contents[0].parts))["engram"])
    assert (settings["out"], settings["resume"]) == ("runs/one", "")
    contents = [b"".join(each.parts) for each in first.contents[1:]]
    found = from_contents(contents, 10**6)
    assert found[CONFIG] == {"server-round": 3, CLIENTS: [0, 3]}
    assert torch.equal(found[ARRAYS]["w"], torch.arange(3000.0))
    # Numbers count as 8 bytes: the round, and each client.
    assert first.most == 2**22 + 4 * 2 * (12_000 + 3 * 8)


def test_a_run_that_is_resumed_asks_for_a_round_by_the_same_names() -> None:
    def asked(**place: str) -> list[Asking]:
        grid = grid_of(link := Scripted(), **place)
        grid.push([train(1), train(3), train(1), train(1, 4)], seconds=60.0)
        query = Question(1, ROSTER_QUERY, {CONFIG: {}})
        grid.push([query], seconds=60.0)
        return [question for question, _ in link.asked]

    before, after = asked(out="runs/one"), asked(resume="runs/one")
    names = [[each.request for each in one] for one in (before, after)]
    assert len({*names[0]}) == 5
    assert names[0][:4] == names[1][:4]
    assert names[0][4] != names[1][4]  # who is there is asked anew
    assert before[0].contents[0].digest == after[0].contents[0].digest


def test_a_reply_is_given_once_to_whoever_asks_for_it() -> None:
    grid = grid_of(link := Scripted())
    sent = memoryview(b"".join(to_parts({ARRAYS: MODEL})))
    (reply,) = answer(grid, link, content=sent)
    assert torch.equal(reply.content[ARRAYS]["w"], torch.arange(3000.0))
    assert reply.question.node == 1
    assert grid.pull([reply.question]) == []


def test_a_wait_ends_with_the_first_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.server.link_grid.time", clock := Clock())
    grid = grid_of(link := Scripted())
    grid.push(questions := [train(1), train(3)], seconds=60.0)
    sent = memoryview(b"".join(to_parts({})))
    link.given += [Reply("client-0", each.name, {}, sent) for each in questions]
    grid.await_reply(0.5)
    assert (link.waits, clock.now, len(link.given)) == ([0.5], 1000.0, 1)
    assert len(grid.pull(questions)) == 2
    grid.await_reply(0.5)  # nothing is outstanding: no busy loop
    assert clock.now == 1000.5


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"error": "refused"}, REFUSED),
        ({"error": "failed"}, RAISED),
        ({"error": "failed", "settings": {"code": DIVERGED}}, DIVERGED),
        ({"error": "failed", "settings": {"code": BUSY}}, RAISED),
        ({"error": "refused", "settings": {"code": DIVERGED}}, REFUSED),
        ({"error": "busy"}, BUSY),
        ({"error": "awaited"}, AWAITED),
        ({"error": "unusable"}, UNUSABLE),
    ],
)
def test_an_error_is_one_of_flowers_messages(said: dict[str, Any], code: int) -> None:
    (reply,) = answer(grid_of(link := Scripted()), link, **said)
    assert (reply.error.code, reply.error.reason) == (code, "because")


@pytest.mark.parametrize("error", ["late", "gone"])
def test_there_is_no_reply_of_who_is_late_or_no_member(error: str) -> None:
    assert answer(grid_of(link := Scripted()), link, error) == []


def test_content_of_another_kind_is_unusable() -> None:
    (reply,) = answer(grid_of(link := Scripted()), link, content=memoryview(b"x" * 100))
    assert reply.error.code == UNUSABLE
    assert reply.error.reason.startswith("it must be records as Engram sends them")


def test_replies_that_nobody_asked_for_in_time_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("engram.server.link_grid.time.monotonic", lambda: now[0])
    grid = grid_of(link := Scripted())
    grid.push([early := train(1), late := train(3)], seconds=60.0)
    sent = memoryview(b"".join(to_parts({})))
    link.given.append(Reply("client-0", early.name, {}, sent))
    assert grid.pull([]) == []
    now[0] = 61.0
    link.given.append(Reply("client-2", late.name, {}, sent))
    assert len(grid.pull([late])) == 1  # that was on its way
    assert grid.pull([early]) == []
