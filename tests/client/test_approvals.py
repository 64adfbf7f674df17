"""A site's approvals: what a node asks for, what the site sees, and what its answer is about."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from flwr.app import ConfigRecord, MessageType, RecordDict

from client import approvals as module
from client.app import _node
from client.approvals import APPROVALS, Awaited, Request, answer, requests, require
from client.audit import Audit
from client.terms import request_of
from engram.core.slots import flat
from federation.errors import AWAITED, Refused
from federation.experiment import Experiment
from federation.flower import local_run
from federation.wire import CONFIG, ROSTER_QUERY, to_record
from tests.client.test_policy import ask, refusal
from tests.support import initial_model, small, trainer

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TRAINING = "0123456789abcdef"
ASKED = Request(TRAINING, "terms", 17, "fedavg", 20)


# --- Requests ----------------------------------------------------------------------------------


def test_a_training_waits_until_the_site_has_answered(tmp_path, warnings_of_engram):
    for _ in range(2):
        with pytest.raises(Awaited, match=f"engram approve CLIENT_FOLDER {TRAINING}"):
            require(tmp_path, ASKED, NOON)
    assert len(warnings_of_engram.messages) == 1  # though it was asked twice
    (found,) = requests(tmp_path)
    assert found == replace(ASKED, asked="2026-03-01T12:00:00+00:00")
    answer(tmp_path, TRAINING, "approved")
    require(tmp_path, ASKED, NOON)
    answer(tmp_path, "17", "refused")
    with pytest.raises(Refused, match=f"this site has refused training {TRAINING}"):
        require(tmp_path, ASKED, NOON)


def test_an_answer_is_about_the_terms_that_were_shown(tmp_path):
    with pytest.raises(Awaited):
        require(tmp_path, ASKED, NOON)
    answer(tmp_path, TRAINING, "approved")
    with pytest.raises(Awaited):
        require(tmp_path, replace(ASKED, terms="others"), NOON)
    with pytest.raises(Awaited):
        require(tmp_path, ASKED, NOON)


def test_a_damaged_request_is_asked_for_again(tmp_path):
    with pytest.raises(Awaited):
        require(tmp_path, ASKED, NOON)
    answer(tmp_path, TRAINING, "approved")
    (tmp_path / f"{TRAINING}.json").write_text('{"training": "x", "answer": "approved"}')
    assert requests(tmp_path) == []
    with pytest.raises(Awaited):
        require(tmp_path, ASKED, NOON)


def test_a_server_cannot_ask_for_any_number_of_trainings(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_WAITING", 3)

    def asked(number, at=NOON):
        require(tmp_path, replace(ASKED, training=f"{number:016x}"), at)

    for number in range(3):
        with pytest.raises(Awaited):
            asked(number)
    with pytest.raises(Refused, match="this site has 3 requests without an answer"):
        asked(3)
    assert len(requests(tmp_path)) == 3
    with pytest.raises(Awaited):
        asked(3, NOON + timedelta(days=8))  # when the others are too old
    assert [one.training for one in requests(tmp_path)] == [f"{3:016x}"]


def test_a_training_that_nobody_asked_for_has_no_answer(tmp_path):
    with pytest.raises(Refused, match="no training that was asked for is called x"):
        answer(tmp_path, "x", "approved")


@pytest.mark.parametrize(
    "change",
    [{"num_rounds": 21}, {"batch_size": 6}, {"method": "fedprox"}, {"clip": 1.0}, {"seed": 1}],
)
def test_terms_are_all_that_bears_on_results(change):
    first = request_of(Experiment(num_rounds=20), TRAINING, 17)
    assert request_of(Experiment(**{"num_rounds": 20} | change), TRAINING, 17).terms != first.terms


@pytest.mark.parametrize("change", [{"out": "x"}, {"timeout": 5.0}, {"min_clients": 2}])
def test_how_and_where_a_run_goes_is_no_term(change):
    first = request_of(Experiment(num_rounds=20), TRAINING, 17)
    assert request_of(Experiment(num_rounds=20, **change), TRAINING, 17).terms == first.terms


def test_a_request_has_the_privacy_in_words():
    """Twenty releases with multiplier 0.05 have mu = sqrt(20) / 0.05 = 89.44.

    For so large a mu, epsilon is mu^2 / 2 + mu z, with z = 4.265 of the normal tail 1e-5: 4,381.
    """
    e = Experiment(privacy="central", clip=1.0, noise_multiplier=0.05, num_rounds=20)
    told = request_of(e, TRAINING, 17).privacy
    assert told.startswith("central privacy by noise-multiplier 0.05 and clip 1: epsilon at most")
    assert float(re.search(r"at most (\d+)", told)[1]) == pytest.approx(4381, abs=3)
    assert "protects hardly anybody" in told
    assert request_of(e, TRAINING, 17).settings == {
        "privacy": "central",
        "clip": 1.0,
        "noise-multiplier": 0.05,
    }
    assert request_of(Experiment(), TRAINING, 17).privacy == ""


# --- A node ------------------------------------------------------------------------------------


def content(number=1):
    config = {"server-round": number, "training": TRAINING, "clients": [0]}
    arrays = to_record(flat(initial_model(trainer(small()))))
    return RecordDict({"arrays": arrays, CONFIG: ConfigRecord(config)})


def test_a_node_reads_no_data_for_a_training_before_it_is_approved(tmp_path, warnings_of_engram):
    local_run()
    _node.cache_clear()
    (tmp_path / "policy.toml").write_text("approval = true")
    roster = RecordDict({CONFIG: ConfigRecord({"training": TRAINING})})
    for kind, asked in ((ROSTER_QUERY, roster), (MessageType.TRAIN, content())):
        reply = ask(tmp_path, kind, asked)
        assert reply.error.code == AWAITED
        assert reply.error.reason.startswith("waits for its site's approval: there, engram approve")
    assert _node.cache_info().misses == 0
    assert len(warnings_of_engram.messages) == 1
    assert ask(tmp_path).has_content()  # `--check` names no training
    (one,) = requests(tmp_path / APPROVALS)
    assert (one.run, one.method, one.rounds, one.settings["batch-size"]) == (1, "local-moml", 4, 4)
    answer(tmp_path / APPROVALS, TRAINING, "approved")
    assert ask(tmp_path, MessageType.TRAIN, content()).has_content()
    told = refusal(ask(tmp_path, MessageType.TRAIN, content(5)))
    assert told == "this site has approved 4 rounds, got round 5"
    others = ask(tmp_path, MessageType.TRAIN, content(), **{"batch-size": 5})
    assert others.error.code == AWAITED
    kinds = [line["kind"] for line in Audit(tmp_path / "log").read().lines]
    assert kinds == [MessageType.TRAIN] * 2


# --- The command -------------------------------------------------------------------------------


def test_the_site_sees_what_it_is_asked_for_and_answers(engram, folder):
    place = folder / "state" / APPROVALS
    place.mkdir(parents=True)
    assert engram("approve", folder)[1] == "no training waits for approval\n"
    settings = {"batch-size": 32, "loss": "\x1b[2J"}
    with pytest.raises(Awaited):
        require(place, replace(ASKED, settings=settings, privacy="central"), NOON)
    status, out, _ = engram("approve", folder)
    assert status == 0
    assert out.splitlines() == [
        f"{TRAINING} waits since 2026-03-01 12:00 UTC",
        "  run       17: fedavg, 20 rounds",
        "  settings  batch-size=32 loss=\\x1b[2J; all others have their defaults",
        "  plug-ins  none",
        "  privacy   central",
        "  asked by  the SuperLink at 127.0.0.1:9092, by its certificate; which person there, "
        "nothing proves",
        f"next: engram approve {folder} RUN, or with --refuse",
    ]
    status, out, _ = engram("approve", folder, TRAINING)
    assert out.startswith(f"{TRAINING}: approved (fedavg, 20 rounds); the run goes on within")
    require(place, ASKED, NOON)
    assert engram("approve", folder, "17", "--refuse")[0] == 0
    assert "run 17, fedavg: refused by this site" in engram("log", folder)[1]
    assert engram("approve", folder, "18")[0] == 2
    assert engram("approve", folder, "--refuse")[0] == 2


def test_an_insecure_federation_says_that_anybody_may_ask(engram, tmp_path):
    from client.site_cli import asked_by

    engram("init-federation", tmp_path / "open", "--clients", 1, "--insecure")
    assert asked_by(tmp_path / "open" / "client-0").startswith("anybody: this federation is insec")
