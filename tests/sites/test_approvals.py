"""A site's approvals: what a node asks for, what the site sees, and what its answer is about."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from engram.client.app import _node
from engram.settings.errors import AWAITED, Refused
from engram.settings.experiment import Experiment
from engram.sites.approvals import (
    APPROVALS,
    Awaited,
    Request,
    answer,
    given,
    requests,
    require,
    waiting,
)
from engram.sites.audit import Audit
from engram.sites.terms import count, request_of
from engram.wire.messages import EVALUATE, TRAIN, Question
from engram.wire.wire import ROSTER_QUERY
from tests.samples import entry
from tests.sites.budgets import TRAINING, model_for, refusal
from tests.sites.sites import ROSTER, ask
from tests.support import small

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TERMS = "f" * 32
ASKED = Request(TRAINING, TERMS, 17, "fedavg", 20, {"train": 20, "evaluate": 3}, 10)


# --- Requests ----------------------------------------------------------------------------------


def wait(folder, request, at=NOON):
    with pytest.raises(Awaited, match=f"waits .*: there, engram approve .* {request.terms}$"):
        require(folder, request, at)


def test_a_training_waits_until_the_site_has_answered(tmp_path, warnings_of_engram):
    for _ in range(2):
        wait(tmp_path, ASKED)
    assert len(warnings_of_engram.messages) == 1  # though it was asked twice
    (found,) = requests(tmp_path)
    assert found == replace(ASKED, asked="2026-03-01T12:00:00+00:00")
    assert answer(tmp_path, TERMS, "approved") == [found]
    require(tmp_path, ASKED, NOON)
    answer(tmp_path, TERMS, "refused")
    with pytest.raises(Refused, match=f"this site has refused training {TRAINING}"):
        require(tmp_path, ASKED, NOON)


def test_terms_that_are_swapped_behind_a_name_are_not_approved(tmp_path):
    """Between the list that a site was shown and its answer, a server asks for other terms."""
    others = replace(ASKED, terms="e" * 32, run=18, rounds=10**6)
    wait(tmp_path, ASKED)
    wait(tmp_path, others, NOON + timedelta(seconds=1))
    with pytest.raises(Refused, match="no request has the digest x"):
        answer(tmp_path, "x", "refused")
    for name in (TRAINING, "17", "18", "x"):  # which stand for anything
        with pytest.raises(Refused, match=f"no request has the digest {name}: without one"):
            answer(tmp_path, name, "approved")
    answer(tmp_path, TERMS, "approved")
    require(tmp_path, ASKED, NOON)
    wait(tmp_path, others)
    require(tmp_path, ASKED, NOON)  # which others do not end
    assert [one.terms for one in answer(tmp_path, TRAINING, "refused")] == [TERMS, others.terms]
    for one in (ASKED, others):
        with pytest.raises(Refused, match="refused"):
            require(tmp_path, one, NOON)


def test_a_damaged_request_is_asked_for_again(tmp_path):
    wait(tmp_path, ASKED)
    answer(tmp_path, TERMS, "approved")
    (tmp_path / f"{TERMS}.json").write_text('{"training": "x", "answer": "approved"}')
    assert requests(tmp_path) == []
    wait(tmp_path, ASKED)


def test_made_up_names_shut_nobody_out(tmp_path):
    """The newest hundred unanswered requests are kept; older ones are removed."""

    def name(number):
        return replace(ASKED, terms=f"{number:032x}")

    for terms, chosen in ((TERMS, "approved"), ("e" * 32, "refused")):
        wait(tmp_path, replace(ASKED, terms=terms))
        answer(tmp_path, terms, chosen)
    for number in range(150):
        wait(tmp_path, name(number), NOON + timedelta(seconds=number))
        newest = [name(n).terms for n in range(max(0, number - 99), number + 1)]
        assert [one.terms for one in waiting(tmp_path)] == newest
    require(tmp_path, ASKED, NOON)
    assert len(requests(tmp_path)) == 102
    answer(tmp_path, name(149).terms, "approved")
    require(tmp_path, name(149), NOON)


def test_terms_are_all_that_a_site_is_shown(monkeypatch):
    def terms(training=TRAINING, **change):
        return request_of(Experiment(**{"num_rounds": 20} | change), training, 17).terms

    first = request_of(Experiment(num_rounds=20), TRAINING, 17)
    assert re.fullmatch("[0-9a-f]{32}", first.terms)
    again = request_of(Experiment(num_rounds=20), TRAINING, 18)  # as a coordinator has started anew
    assert again == replace(first, run=18)
    assert terms("f" * 16) != first.terms
    shown = {"num_rounds": 21, "batch_size": 6, "method": "fedprox", "clip": 1.0, "seed": 1}
    shown |= {"eval_every": 3, "checkpoint_every": 3}
    for key, value in shown.items():
        with entry(key):
            assert terms(**{key: value}) != first.terms
    for key, value in {"out": "x", "timeout": 5.0, "min_clients": 2}.items():  # how a run goes
        with entry(key):
            assert terms(**{key: value}) == first.terms
    for name, other in (("fingerprint", lambda: "x"), ("plugins", lambda: ("own",))):
        with monkeypatch.context() as patch:
            patch.setattr(f"engram.sites.terms.{name}", other)
            assert terms() != first.terms


def test_a_request_has_the_privacy_in_words():
    """Twenty releases with multiplier 0.05 have mu = sqrt(20) / 0.05 = 89.44.

    For so large a mu, epsilon is mu^2 / 2 + mu z, with z = 4.265 of the normal tail 1e-5: 4,381.
    """
    e = Experiment(privacy="central", clip=1.0, noise_multiplier=0.05, num_rounds=20)
    told = request_of(e, TRAINING, 17).privacy
    assert told.startswith("central privacy by noise-multiplier 0.05 and clip 1: epsilon at most")
    assert float(re.search(r"at most (\d+)", told)[1]) == pytest.approx(4381, abs=3)
    assert "protects hardly anybody" in told
    shown = {"privacy": "central", "clip": 1.0, "noise-multiplier": 0.05}
    assert request_of(e, TRAINING, 17).settings == shown
    assert request_of(Experiment(), TRAINING, 17).privacy == ""


# --- A node ------------------------------------------------------------------------------------


def content(number=1, **more):
    return model_for(small(), number, **more)


@pytest.fixture
def node(tmp_path):
    """Asks a node whose site approves each training, for a run of four rounds."""
    _node.cache_clear()
    (tmp_path / "policy.toml").write_text("approval = true")

    def asked(kind=TRAIN, question=None, *, run=1, **settings):
        return ask(tmp_path, kind, question or content(), run=run, **settings)

    return asked


def approve(folder):
    (one,) = waiting(folder / APPROVALS)
    return answer(folder / APPROVALS, one.terms, "approved")[0]


def test_a_node_reads_no_data_for_a_training_before_it_is_approved(
    tmp_path, node, warnings_of_engram
):
    for kind, asked in ((ROSTER_QUERY, ROSTER), (TRAIN, content())):
        reply = node(kind, asked)
        assert reply.error.code == AWAITED
        assert reply.error.reason.startswith("waits for its site's approval: there, engram approve")
    assert _node.cache_info().misses == 0
    assert len(warnings_of_engram.messages) == 1
    assert ask(tmp_path).error is None  # `--check` names no training
    one = approve(tmp_path)
    assert (one.run, one.method, one.rounds, one.settings["batch-size"]) == (1, "local-moml", 4, 4)
    assert node().error is None
    assert refusal(node(question=content(5))) == "this site has approved 4 rounds, got round 5"
    assert node(**{"batch-size": 5}).error.code == AWAITED
    kinds = [line["kind"] for line in Audit(tmp_path / "log").read().lines]
    assert kinds == [TRAIN] * 2


def test_restarts_repeat_as_often_as_there_are_rounds_and_more_waits_anew(tmp_path, node):
    node()
    one = approve(tmp_path)
    assert node().error is None

    def used():
        return given(tmp_path / APPROVALS, one)

    for run in (1, 2, 3):
        _node.cache_clear()  # as of a node that was restarted
        assert node(run=run).error is None
    assert node(question=content(**{"most-examples": 2})).error is None
    assert (used().tallies["train"].new, used().tallies["train"].again) == (1, 4)
    assert node(ROSTER_QUERY, ROSTER).error is None
    again = node(question=content(**{"most-examples": 1}))
    assert again.error.code == AWAITED
    assert again.error.reason == (
        "waits for its site's approval, since round 1 (train) is beyond what was approved (1 "
        f"answers so far, and 4 again): there, engram approve CLIENT_FOLDER {one.terms}"
    )
    assert node(ROSTER_QUERY, ROSTER).error.code == AWAITED  # a run that begins waits, too
    assert node(question=content(2)).error is None  # and what was approved goes on
    assert [each.terms for each in waiting(tmp_path / APPROVALS)] == [one.terms]
    approve(tmp_path)
    assert node(ROSTER_QUERY, ROSTER).error is None
    assert node(question=content(**{"most-examples": 1})).error is None
    assert waiting(tmp_path / APPROVALS) == []


def test_scores_are_counted_too(tmp_path, node):
    node()
    approve(tmp_path)
    for number in (0, 2, 4):  # eval-every is 2
        assert node(EVALUATE, content(number)).error is None
    for number, answered in ((0, False), (2, False), (4, True), (5, False)):
        other = content(number, **{"most-examples": 1})
        assert (node(EVALUATE, other).error is None) == answered
    answer(tmp_path / APPROVALS, TRAINING, "refused")
    for kind in (EVALUATE, TRAIN):
        assert refusal(node(kind)) == f"this site has refused training {TRAINING}"


def test_a_node_that_died_at_work_answers_the_same_message(tmp_path, node):
    """Its answer counts: it may have left."""
    node()
    one = approve(tmp_path)
    for times in range(5):  # four rounds, so four answers again
        assert node().error is None
        tally = given(tmp_path / APPROVALS, one).tallies["train"]
        assert (tally.new, tally.again) == (1, times)
    assert node().error.code == AWAITED


def test_a_count_that_is_damaged_leaves_nothing_to_give(tmp_path, node):
    node()
    one = approve(tmp_path)
    assert node().error is None
    (tmp_path / APPROVALS / f"{one.terms}.given").write_text("{")
    for kind, asked in ((TRAIN, content(2)), (ROSTER_QUERY, ROSTER)):
        assert "since its count of answers is damaged" in node(kind, asked).error.reason
    approve(tmp_path)
    assert node(question=content(2)).error is None


# --- The command -------------------------------------------------------------------------------


def test_the_site_sees_what_it_is_asked_for_and_answers(engram, folder):
    place = folder / "state" / APPROVALS
    place.mkdir(parents=True)
    assert engram("approve", folder)[1] == "no training waits for approval\n"
    settings = {"batch-size": 32, "loss": "\x1b[2J"}
    wait(place, replace(ASKED, settings=settings, privacy="central"))
    status, out, _ = engram("approve", folder)
    assert status == 0
    shown = [
        f"  training  {TRAINING}, run 17: fedavg, 20 rounds",
        "  answers   20 of training, 3 of scores; as many again, of at most 10 rounds for each "
        "restart",
        "  settings  batch-size=32 loss=\\x1b[2J; all others have their defaults",
        "  plug-ins  none",
        "  privacy   central",
        "  asked by  the server at 127.0.0.1:9092, by its certificate; which person there, "
        "nothing proves",
        f"next: engram approve {folder} REQUEST, or with --refuse",
    ]
    assert out.splitlines() == [f"{TERMS} waits since 2026-03-01 12:00 UTC", *shown]
    status, out, _ = engram("approve", folder, TERMS)
    assert out.startswith(f"{TERMS}: approved (fedavg, 20 rounds); the run goes on within")
    require(place, ASKED, NOON)
    question = Question(1, TRAIN, content())
    for _ in range(21):
        count(place, ASKED, question)
    with pytest.raises(Awaited):
        count(place, ASKED, question)
    beyond = "round 1 (train) is beyond what was approved (1 answers so far, and 20 again)"
    lines = engram("approve", folder)[1].splitlines()
    assert lines == [f"{TERMS} waits again: {beyond}", *shown]
    assert engram("approve", folder, "17", "--refuse")[0] == 0
    assert "run 17, fedavg: refused by this site" in engram("log", folder)[1]
    assert engram("approve", folder, "18")[0] == 2
    assert engram("approve", folder, "--refuse")[0] == 2
