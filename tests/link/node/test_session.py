"""What a node does with messages that come while its worker is at work, on a clock of its own."""

import logging
import math
from concurrent.futures import Future
from datetime import UTC, datetime
from threading import Event
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from engram.link.flower import Parcel, pack, unpack
from engram.link.node import session
from engram.link.node.fleet import RunInfo, RunOver, Unreachable, Unusable
from engram.link.node.session import Session
from engram.link.node.worker import WorkerDied
from engram.settings.errors import BUSY, REFUSED
from engram.sites.audit import Audit
from engram.sites.policy import USUAL, read_policy
from engram.wire.wire import CONFIG
from tests.link.messages import question
from tests.samples import entry

WALL = 1_700_000_000.0  # seconds; the time at which every test begins


def message(number=0, *, ttl=600.0, created=0.0):
    """A message that lives for ``ttl`` seconds from ``created``, by the test's clock."""
    content = RecordDict({CONFIG: ConfigRecord({"number": number})})
    return pack(question(content, created_at=WALL + created, ttl=ttl))


class World:
    """A clock, a SuperLink and a worker. Whoever waits moves the clock, and nothing else does."""

    def __init__(self, mail, takes, over):
        self.now = 0.0
        self.stop = Event()
        self.end = 200.0
        self.mail = sorted(mail, key=lambda item: item[0])  # when, run, message
        self.takes = dict(takes)  # seconds of work, by run
        self.over = dict(over)  # when a run is over
        self.down = []  # when the SuperLink is not there: from, until
        self.calls, self.fetched, self.confirmed, self.answers, self.stopped = [], [], [], [], []
        self._working = None

    # The clock

    def advance(self, seconds):
        self.now += seconds
        if self.now > self.end:
            self.stop.set()

    def wait(self, futures, seconds):
        (future,) = futures
        ready, reply = self._working or (math.inf, None)
        if self.now + seconds >= ready:
            self.advance(max(0.0, ready - self.now))
            self._working = None
            future.set_result(reply)
        else:
            self.advance(seconds)
        return SimpleNamespace(done={future} if future.done() else set())

    # The SuperLink

    def _call(self, name, run_id=None):
        self.calls.append(name)
        if any(start <= self.now < end for start, end in self.down):
            raise Unreachable("gone")
        if run_id is not None and self.now >= self.over.get(run_id, math.inf):
            raise RunOver("the run is not running any more")

    def pull(self):
        self._call("pull")
        if not self.mail or self.mail[0][0] > self.now:
            return None
        _, run_id, parcel = self.mail.pop(0)
        return run_id, parcel._replace(objects={}) if isinstance(parcel, Parcel) else parcel

    def fetch(self, run_id, parcel, *, until):
        self._call("fetch", run_id)
        self.fetched.append(run_id)
        return parcel

    def confirm(self, run_id, parcel):
        self._call("confirm", run_id)
        self.confirmed.append(run_id)

    def check_run(self, run_id):
        self._call("check_run", run_id)

    def run_info(self, run_id):
        return RunInfo(run_id, b"", {})

    def push(self, run_id, reply):
        self._call("push", run_id)
        self.answers.append((round(self.now, 1), run_id, unpack(reply)))

    # The worker

    def begin(self, work):
        done = Future()
        question = session.error_instead(work.message, 0, "")
        reply = pack(Message(RecordDict(), reply_to=question))
        self._working = (self.now + self.takes.get(work.run.run_id, 0.1), reply)
        self._future = done
        return done

    def stop_work(self):
        self.stopped.append(self.now)
        self._working = None
        self._future.set_exception(WorkerDied("killed"))


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Plays what comes to a node; returns the world afterwards."""

    def play(*mail, takes=None, over=None, end=200.0, down=(), **site):
        world = World(mail, takes or {}, over or {})
        world.end, world.down = end, list(down)
        clock = SimpleNamespace(monotonic=lambda: world.now, time=lambda: WALL + world.now)
        monkeypatch.setattr(session, "time", clock)
        monkeypatch.setattr(session, "wait", world.wait)
        monkeypatch.setattr(world.stop, "wait", world.advance)
        world.error = None
        try:
            usual = {"policy": lambda: USUAL, "audit": Audit(tmp_path / "log")}
            Session(world, world, 7, world.stop, **usual | site).serve()
        except Unreachable as error:
            world.error = error
        return world

    return play


def kinds(world):
    """When each answer was given, to which run, and the code of its error."""
    return [
        (when, run, reply.error.code if reply.has_error() else None)
        for when, run, reply in world.answers
    ]


def test_short_work_costs_no_call_more(play):
    world = play((0, 1, message()), takes={1: 1.9})
    assert world.calls[:4] == ["pull", "fetch", "push", "pull"]


def test_work_is_ended_with_its_round(play, caplog):
    caplog.set_level(logging.INFO)
    world = play((0, 1, message(ttl=15.0)), (60, 1, message(2)), takes={1: math.inf}, end=90)
    assert [round(when) for when in world.stopped] == [15]
    assert world.answers == []
    (line,) = (r.message for r in caplog.records if "ended" in r.message)
    assert line == "work for run 1 ended after 15 s: its round is over"


def test_a_clock_that_differs_makes_no_work_longer(play):
    for created, ends in [(0, 15), (-5, 10), (1000, 15), (math.nan, 15)]:
        with entry(created, ends):
            world = play((0, 1, message(ttl=15.0, created=created)), takes={1: math.inf})
            assert [round(when) for when in world.stopped] == [ends]


def test_work_is_ended_when_the_sites_policy_says_so_and_both_sides_learn_it(
    play, tmp_path, monkeypatch
):
    monkeypatch.setattr("engram.sites.audit.now", lambda: datetime(2026, 3, 1, tzinfo=UTC))
    policy = tmp_path / "policy.toml"
    policy.write_text("seconds = 20")
    mail = [(0, 1, message()), (60, 1, message(2))]
    audit = Audit(tmp_path / "log")
    world = play(*mail, takes={1: math.inf}, policy=lambda: read_policy(policy), audit=audit)
    assert [round(when) for when in world.stopped] == [20, 80]
    why = "this site's policy allows 20 s of work for a round"
    assert [reply.error.reason for _, _, reply in world.answers] == [
        f"{why}, which it has taken"
    ] * 2
    assert kinds(world)[0][1:] == (1, REFUSED)
    noted = [(line["run"], line["why"], line["today"]) for line in audit.read().lines]
    assert noted == [(1, f"after 20 s: {why}", 1), (1, f"after 20 s: {why}", 2)]


def test_quick_work_is_not_ended_by_the_sites_policy(play, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("seconds = 20")
    world = play(
        (0, 1, message()),
        (5, 2, message()),
        takes={1: 15, 2: 15},
        policy=lambda: read_policy(policy),
    )
    assert [(run, code) for _, run, code in kinds(world)] == [(1, None), (2, None)]
    assert world.stopped == []


def test_what_nobody_waits_for_is_not_begun(play):
    for ttl in [0.0, -1.0, math.nan]:
        with entry(ttl):
            world = play((0, 1, message(ttl=ttl)), takes={1: math.inf}, end=9)
            assert (world.fetched, world.stopped, world.answers) == ([], [], [])


def test_no_time_to_live_is_too_long(play):
    world = play((0, 1, message(ttl=math.inf)), (5, 2, message()), takes={1: math.inf}, end=20)
    assert kinds(world) == [(pytest.approx(5 + 10, abs=4), 2, BUSY)]


def test_work_is_ended_with_its_run(play):
    world = play((0, 1, message()), takes={1: math.inf}, over={1: 32})
    assert 32 <= world.stopped[0] < 38
    assert world.answers == []


def test_long_work_does_not_ask_all_the_time(play):
    world = play((0, 1, message(ttl=1e5)), takes={1: 36_000}, end=36_000)
    assert world.calls.count("check_run") < 700  # in ten hours


def test_another_run_is_told_that_the_node_is_busy(play):
    world = play((0, 1, message()), (42, 2, message()), takes={1: 100})
    (busy, done) = world.answers
    assert kinds(world)[0] == (pytest.approx(42 + 10, abs=5), 2, BUSY)
    assert busy[2].error.reason.startswith("this node is at work for run 1, since 5")
    assert busy[2].error.reason.endswith("2023-11-14 22:23:20 UTC at the latest")
    assert "\n" not in busy[2].error.reason
    assert done[:2] == (100, 1)
    assert (world.fetched, world.confirmed) == ([1], [2])  # its content stays where it is


def test_runs_take_turns(play):
    mail = [(t, run, message(t)) for t, run in ((0, 1), (1, 2), (8, 1), (9, 2))]
    world = play(*mail, takes={1: 6, 2: 1})
    assert [(run, code) for _, run, code in kinds(world)] == [(1, None), (2, None)] * 2


def test_a_new_run_does_not_wait_for_one_that_is_over(play):
    mail = (0, 1, message(1)), (10.5, 1, message(2)), (11, 2, message(3))
    world = play(*mail, takes={1: math.inf}, over={1: 10.9})
    assert [when < 14 for when in world.stopped] == [True]
    assert [(run, code) for _, run, code in kinds(world)] == [(2, None)]


def test_the_same_run_waits_its_turn(play):
    mail = [(0, 1, message(0)), *((3, 1, message(n)) for n in range(1, 40))]
    world = play(*mail, takes={1: 20}, end=39 * 20 + 30)
    replied = [reply.metadata.reply_to_message_id for _, _, reply in world.answers]
    assert replied == [session.metadata_of(parcel).message_id for _, _, parcel in mail[:30]]
    assert [when for when, _, _ in world.answers] == [20.0 * n for n in range(1, 31)]


def test_no_more_messages_wait_than_a_node_has_room_for(play):
    mail = [(3, 1, message(n)) for n in range(1, 100)]
    world = play((0, 1, message()), *mail, takes={1: 150}, end=149)
    assert len(world.mail) == 99 - 16  # these wait at the SuperLink


def test_work_goes_on_without_the_superlink_and_the_session_ends_afterwards(play):
    mail = (0, 1, message(ttl=900.0)), (50, 2, message())
    world = play(*mail, takes={1: 100}, down=[(20, 80)])
    assert kinds(world)[-1] == (100, 1, None)
    assert str(world.error) == "gone"  # a message may have been lost: who connects gets it again


def test_a_busy_node_loses_no_message_that_it_could_not_answer(play, monkeypatch):
    refuse, calls = World.confirm, []

    def confirm(self, run_id, parcel):
        calls.append(run_id)
        if len(calls) == 1:
            raise Unreachable("a moment")
        refuse(self, run_id, parcel)

    monkeypatch.setattr(World, "confirm", confirm)
    world = play((0, 1, message()), (10, 2, message()), takes={1: 30})
    (busy, done) = kinds(world)
    assert (busy[1:], done) == ((2, BUSY), (30, 1, None))
    assert str(world.error) == "a moment"


def test_what_cannot_be_used_is_refused_in_a_line(play, monkeypatch):
    def fetch(self, run_id, parcel, *, until):
        raise Unusable("the message has more than 10000 parts")

    monkeypatch.setattr(World, "fetch", fetch)
    world = play((0, 1, message()), end=5)
    assert kinds(world) == [(0.0, 1, REFUSED)]
    assert world.answers[0][2].error.reason == "the message has more than 10000 parts"
    assert world.confirmed == [1]


def test_what_is_no_message_is_dropped(play):
    junk = Parcel(b"\x0a\x02junk", b"", {})
    world = play((0, 1, junk), (1, 1, message()), end=9)
    assert [run for _, run, _ in world.answers] == [1]
