"""Coverage of approvals: a run with restarts of its coordinator, and no more."""

from itertools import count as numbers
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.guards.secure.wire import Stage
from engram.simulations.engine import simulate
from engram.sites.approvals import Awaited
from engram.sites.approvals import given as given_by
from engram.sites.terms import count, request_of
from engram.wire.messages import EVALUATE, TRAIN, Question
from engram.wire.wire import CONFIG, ROSTER_QUERY, SECURE_QUERY
from tests.samples import entry
from tests.support import small


class Site:
    """A site that has approved a training, and is asked for answers to it."""

    def __init__(self, folder, **settings):
        self.folder, self.e = folder, small(**settings)
        self.given, self.new = [], numbers()
        self.requests = {}  # by run

    def asked(self, kind, number, run=1, *, durable=0, content=None):
        """Whether it answers a message, whose content is new unless it is given."""
        told = next(self.new) if content is None else content
        config = {"server-round": number, "durable": durable, "told": str(told)}
        question = Question(1, kind, {CONFIG: config})
        if run not in self.requests:
            self.requests[run] = request_of(self.e, "0" * 16, run)
        try:
            count(self.folder, self.requests[run], question)
        except Awaited:
            return False
        self.given.append((run, kind, number))
        return True


# --- Runs of each family -----------------------------------------------------------------------


class Crash(BaseException):
    """The coordinator is killed."""


class Counting:
    """Stands between server and host, and counts what each node answers under its approval.

    After ``last`` messages to node 1 the coordinator is killed; 0: never.
    """

    def __init__(self, host, folder, e, *, run, last=0):
        self.host, self.folder, self.e = host, folder, e
        self.run, self.last = run, last
        self.messages = 0

    def describe(self, hosted):
        return self.host.describe(hosted)

    def train(self, requests):
        return self._counted(requests, self.host.train)

    def evaluate(self, requests):
        return self._counted(requests, self.host.evaluate)

    def exchange(self, requests):
        return self._counted(requests, self.host.exchange)

    def _counted(self, requests, answer):
        for request in requests:
            node = request.question.node
            asked = request_of(self.e, "0" * 16, self.run)
            count(self.folder / f"node-{node}", asked, request.question)
            self.messages += node == 1
        replies = answer(requests)
        if self.last and self.messages >= self.last:
            raise Crash
        return replies


SPARSE = {"dataset": "sparse-linear", "num_clients": 4}
SECURE = {"num_clients": 3, "clients_per_round": 3, "aggregation": "secure", "clip": 1.0}
FAMILIES = {
    "network": {"method": "ditto", "num_clients": 4},
    "early": {"method": "fedavg", "num_clients": 4, "num_rounds": 3, "eval_every": 3},
    "secure": {"method": "fedavg", **SECURE},
    "molar": {"method": "molar", **SPARSE},
    "adaptive": {"method": "molar", **SPARSE, "molar.sharing": "adaptive"},
    "molar-bandit": {"method": "molar-bandit", **SPARSE},
    "meta-ban": {"method": "meta-ban", "num_clients": 10, "meta-ban.meta_steps": 2},
}


def most(folder, e):
    """The answers of each kind of the node that has answered most; and how many were approved."""
    request = request_of(e, "0" * 16, 1)
    used = [given_by(place, request).tallies for place in folder.glob("node-*")]
    return request.answers, {
        kind: [max(getattr(each[kind], name) for each in used if kind in each)
               for name in ("new", "again")]
        for kind in request.answers
    }  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_an_approval_covers_a_run_and_each_of_its_answers_is_used(family, tmp_path):
    e = small(**FAMILIES[family])
    simulate(e, tmp_path / "run", through=lambda host: Counting(host, tmp_path, e, run=1))
    approved, used = most(tmp_path, e)
    assert {kind: again for kind, (_, again) in used.items()} == dict.fromkeys(approved, 0)
    assert all(new <= approved[kind] for kind, (new, _) in used.items())
    if family in ("network", "early", "secure"):  # some others ask less, if little is to be said
        assert {kind: new for kind, (new, _) in used.items()} == approved


def test_numbers_of_answers_follow_from_the_terms():
    """Four rounds, scored before the first one and after each second; a checkpoint each second."""

    def terms(**settings):
        found = request_of(small(**settings), "0" * 16, 1)
        return found.answers, found.every

    assert terms() == ({TRAIN: 4, EVALUATE: 3}, 2)
    assert terms(num_rounds=5) == ({TRAIN: 5, EVALUATE: 4}, 2)
    assert terms(num_rounds=5, eval_every=9, checkpoint_every=1) == ({TRAIN: 5, EVALUATE: 2}, 1)
    secure = {"method": "fedavg", "aggregation": "secure", "clip": 1.0}
    stages = 4 * len(get_args(Stage))
    assert terms(**secure) == ({TRAIN: 4, EVALUATE: 3, SECURE_QUERY: stages}, 1)
    # An offer, predictions, eight steps, and the arm.
    bandit = {"method": "meta-ban", "num_rounds": 4, "meta-ban.meta_steps": 8}
    assert terms(**bandit)[0][TRAIN] == 4 * 11


@pytest.mark.parametrize("family", ["network", "secure", "molar-bandit", "meta-ban"])
def test_a_coordinator_may_be_killed_after_any_message(family, tmp_path):
    """It is killed once, and once more after the next message, and then comes to its end."""
    e = small(**FAMILIES[family] | {"num_rounds": 2 if family == "secure" else 3})
    last, killed = 0, True
    while killed:
        last, folder = last + 1, tmp_path / f"{last}"
        killed = False
        for run, after in enumerate((last, 1, 0), start=1):
            begun = (folder / "run" / "config.json").is_file()
            resumed = e.model_copy(update={"resume": str(folder / "run") if begun else ""})

            def through(host, folder=folder, run=run, after=after):
                return Counting(host, folder, e, run=run, last=after)

            try:
                simulate(resumed, folder / "run", through=through)
            except Crash:
                killed = True
            else:
                break
        approved, used = most(folder, e)
        parts = approved[TRAIN] // e.rounds
        again = used[TRAIN][1]
        assert again <= 2 * parts * (1 if family == "secure" else 2)  # two restarts, of two rounds
        assert used[TRAIN][0] <= approved[TRAIN]
    assert last > 3


# --- Messages of any server --------------------------------------------------------------------


@given(st.integers(0, 10**6))
@settings(max_examples=8)
def test_rounds_after_the_last_checkpoint_pass_whenever_a_coordinator_dies(tmp_path_factory, seed):
    """Runs of up to 40 rounds with nodes that miss some; the test counts for itself.

    A round counts as asked again if the node has answered it, or a later one, in an earlier run.
    """
    rng = Random(seed)
    rounds, every = rng.randint(1, 40), rng.randint(1, 12)
    folder = tmp_path_factory.mktemp("site")
    site = Site(folder, num_rounds=rounds, checkpoint_every=every)
    run, last, new, again, before, furthest = 1, 0, 0, 0, 0, 0
    while last < rounds:
        for number in range(last + 1, rounds + 1):
            if number <= before and again == rounds:  # its site is asked anew from here on
                return
            if rng.random() < 0.9:  # else it is off line, or not drawn
                durable = max(0, last - every)
                assert site.asked(TRAIN, number, run, durable=durable), (run, number, last)
                new, again = new + (number > before), again + (number <= before)
                furthest = max(furthest, number)
            if rng.random() < 0.15:  # killed before it is recorded
                run, before = run + 1, furthest
                break
            last = number if number % every == 0 or number == rounds else last
    (tally,) = given_by(folder, site.requests[1]).tallies.values()
    assert (tally.new, tally.again) == (new, again)


@given(st.integers(0, 10**6))
@settings(max_examples=8)
def test_no_server_gets_more_than_was_approved_and_as_much_again(tmp_path_factory, seed):
    """Whatever it asks: rounds in any order, as any run, with any claim of what is durable."""
    rng = Random(seed)
    rounds, every = rng.randint(1, 8), rng.randint(1, 10)
    folder, scored = tmp_path_factory.mktemp("site"), rng.randint(1, 9)
    site = Site(folder, num_rounds=rounds, checkpoint_every=every, eval_every=scored)
    for _ in range(400):
        kind = rng.choice((TRAIN, EVALUATE))
        number, content = rng.randint(0, rounds), rng.choice((None, "same"))
        durable = rng.choice((0, 0, rng.randint(0, rounds)))
        site.asked(kind, number, rng.randint(1, 3), durable=durable, content=content)
    approved = request_of(site.e, "0" * 16, 1).answers
    for kind, most in approved.items():
        assert len([one for one in site.given if one[1] == kind]) <= 2 * most


def test_a_round_before_the_last_checkpoint_is_not_answered_again(tmp_path):
    site = Site(tmp_path, num_rounds=20, checkpoint_every=3)
    assert [site.asked(TRAIN, number) for number in (1, 2, 5)] == [True] * 3
    assert not any(site.asked(TRAIN, number) for number in range(4))
    assert site.asked(TRAIN, 6)
    assert site.asked(EVALUATE, 5)  # of which there is a count of its own
    assert not any(site.asked(EVALUATE, number) for number in range(4))


@pytest.mark.parametrize("run", [1, 2])
def test_a_restarted_coordinator_goes_on_after_its_last_checkpoint(tmp_path, run):
    """With a checkpoint after rounds 3, 6, 9, and perhaps not yet after the one it has reached."""

    def reached_in(name, reached):
        site = Site(tmp_path / f"{reached}-{name}", num_rounds=20, checkpoint_every=3)
        assert all(site.asked(TRAIN, each) for each in range(1, reached + 1))
        return site

    for reached, first in [(1, 1), (3, 1), (4, 4), (5, 4), (6, 4), (7, 7)]:
        with entry(reached, first):
            for number in range(first):
                site = reached_in(number, reached)
                assert not site.asked(TRAIN, number, run) or number == 0 == first - 1
            site = reached_in("all", reached)
            assert all(site.asked(TRAIN, each, run) for each in range(first, reached + 2))
            assert not any(site.asked(TRAIN, each, run) for each in range(reached // 3 * 3 + 1))


def test_no_round_up_to_what_is_durable_is_asked_again(tmp_path):
    """A run that was stopped has a checkpoint after any round."""
    site = Site(tmp_path, num_rounds=20, checkpoint_every=10)
    assert all(site.asked(TRAIN, number) for number in range(1, 6))
    assert not site.asked(TRAIN, 3, run=2, durable=3)
    assert site.asked(TRAIN, 4, run=2, durable=3)


@pytest.mark.parametrize("resumed", [True, False])
def test_restarts_without_end_are_not_covered(tmp_path, resumed):
    """However many rounds a restart may repeat, as the same run or another: a server chooses."""
    site = Site(tmp_path, num_rounds=5, checkpoint_every=1000)
    assert all(site.asked(TRAIN, number) for number in range(1, 6))
    repeated = [site.asked(TRAIN, 1, 1 if resumed else run) for run in range(2, 100)]
    assert repeated == [True] * 5 + [False] * 93


def test_rounds_that_were_not_approved_and_other_kinds_are_not_counted(tmp_path):
    site = Site(tmp_path)
    assert site.asked(SECURE_QUERY, 1)  # aggregation is plain, so that it is refused elsewhere
    assert all(site.asked(ROSTER_QUERY, 0) for _ in range(100))
    assert given_by(tmp_path, request_of(site.e, "0" * 16, 1)).tallies == {}
