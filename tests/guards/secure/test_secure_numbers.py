"""Secure aggregation: numbers of parties that a hostile site or a hostile server has changed."""

import pytest

from engram.runs.run import Run
from engram.settings.errors import RunStopped
from engram.simulations.engine import simulate
from engram.wire.messages import Content
from engram.wire.wire import config_of
from tests.guards.secure.test_secure import Between, experiment, spoiled
from tests.samples import entry
from tests.support import assert_same

LIAR, OTHER, NOBODY = 3, 4, 99


class Lying(Between):
    """Changes what one client answers at a stage, as a hostile site would."""

    def __init__(self, host, stage, lie):
        super().__init__(host)
        self.stage, self.lie = stage, lie

    def exchange(self, requests):
        stage = config_of(requests[0].question.content)["stage"]
        return self._told(stage, requests, super().exchange(requests))

    def train(self, requests):
        return self._told("train", requests, super().train(requests))

    def _told(self, stage, requests, replies):
        for request, reply in zip(requests, replies, strict=True):
            if stage == self.stage and request.hosted[0] == LIAR:
                self.lie(reply.content)
        return replies


def renamed(before, after):
    """Puts what is of one party under the number of another."""

    def change(content: Content):
        record = content["secure"]
        record["parties"] = [after if p == before else p for p in record["parties"]]

    return change


def twice(content):
    """Names the first party once more, at the end."""
    record = content["secure"]
    record["parties"] = [*record["parties"], record["parties"][0]]
    if "data" in record:
        record["data"] = [*record["data"], record["data"][0]]


def swapped(content):
    """Exchanges what is of two parties."""
    record = content["secure"]
    swap = {OTHER: OTHER + 1, OTHER + 1: OTHER}
    record["parties"] = [swap.get(party, party) for party in record["parties"]]


def short(content):
    """Sends half of a key."""
    record = content["secure"]
    record["data"] = [data[:16] for data in record["data"]]


def trained_as(client):
    def change(content):
        content["clients"]["ids"] = [client]

    return change


def left_out(folder, stage, lie):
    """Runs a round with a lying client; returns who is left out, and how many are in the mean."""
    e = experiment(aggregation="secure")
    simulate(e, folder, through=lambda host: Lying(host, stage, lie))
    (row,) = (r for r in Run.open(folder).rows() if r["round"] == 1)
    return row["absent"], row["clients"]


APART = "for each of different parties, which have numbers from 0"


@pytest.mark.parametrize(
    ("stage", "lie", "told"),
    [
        ("keys", renamed(LIAR, OTHER), "of client-3, got none of [3], and others of [4]"),
        ("keys", renamed(LIAR, NOBODY), "of client-3, got none of [3], and others of [99]"),
        ("keys", renamed(LIAR, 2**31), f"{APART}, got something else of [2147483648]"),
        ("keys", twice, f"{APART}, got something else of [3]"),
        ("keys", short, "keys must be more than 64 bytes, got 16"),
        ("shares", renamed(OTHER, NOBODY), "must be of all 20 parties, got none of [4], and"),
        ("shares", renamed(OTHER, LIAR), APART),
        ("train", trained_as(OTHER), "[3] were asked, [4] answered, [] failed"),
        ("train", trained_as(NOBODY), "[3] were asked, [99] answered, [] failed"),
    ],
)
def test_a_site_that_answers_by_another_number_is_left_out_by_name(
    tmp_path, warnings_of_engram, stage, lie, told
):
    kinds, count = left_out(tmp_path, stage, lie)
    assert kinds == {str(LIAR): "clients" if stage == "train" else "malformed"}
    assert count == 19
    (line,) = warnings_of_engram.messages
    assert line.startswith("round 1: the reply of clients [3] is left out (")
    assert told in line


def test_after_its_update_has_come_its_answer_is_left_out_and_the_sum_is_whole(
    tmp_path, warnings_of_engram
):
    simulate(experiment(aggregation="secure"), tmp_path / "honest")
    honest = Run.open(tmp_path / "honest").load_checkpoint().model
    for number, (stage, lie, told) in enumerate(
        [
            ("survivors", renamed(LIAR, OTHER), "of client-3, got none of [3], and others of [4]"),
            ("survivors", twice, "for each of different parties"),
            ("unmask", renamed(OTHER, NOBODY), "20 parties, got none of [4], and others of [99"),
            ("unmask", renamed(OTHER, LIAR), "for each of different parties"),
        ]
    ):
        warnings_of_engram.clear()
        with entry(stage, told):
            assert left_out(tmp_path / f"{number}", stage, lie) == ({}, 20)
            (line,) = warnings_of_engram.messages
            said = "round 1: the update of clients [3] is in the sum, and their answer"
            assert line.startswith(said)
            assert told in line
            found = Run.open(tmp_path / f"{number}").load_checkpoint().model
            assert_same(found, honest)


def test_shares_that_a_site_has_sealed_for_one_party_are_no_others(tmp_path, warnings_of_engram):
    """The two to whom they come are left out, by a line that names who has sent them."""
    assert left_out(tmp_path, "shares", swapped) == ({"4": "error", "5": "error"}, 18)
    (line,) = warnings_of_engram.messages
    assert "the reply of clients [4, 5] is left out (error): shares of client-3 must be" in line


def test_a_site_whose_signature_is_anothers_is_named_where_the_round_stops(tmp_path):
    def forge(content):
        content["secure"]["data"] = [bytes(64)]

    with pytest.raises(RunStopped, match="by the key that is registered for client-3"):
        left_out(tmp_path, "survivors", forge)


@pytest.mark.parametrize(
    ("stage", "spoil", "told"),
    [
        ("shares", twice, f"{APART}, got something else of [0]"),
        ("shares", renamed(OTHER, NOBODY), "of 14 or more of the 20 parties of the terms, got"),
        ("shares", swapped, "by the key that is registered for client-5"),
        ("train", twice, APART),
        ("train", renamed(OTHER, NOBODY), "of others of the 20 parties that have sent keys"),
        ("train", swapped, "shares of client-5 must be sealed by it, for this round"),
        ("survivors", twice, "survivors must be named once each, got parties [0] more often"),
        ("survivors", renamed(OTHER, -1), "14 or more of the 20 parties with shares, client-"),
        ("unmask", twice, APART),
        ("unmask", renamed(OTHER, NOBODY), "of 14 or more of the 20 survivors"),
    ],
)
def test_a_site_refuses_a_list_of_parties_that_is_not_theirs(tmp_path, stage, spoil, told):
    between = []
    through = spoiled(between, stage, spoil)
    with pytest.raises(RunStopped) as stopped:
        simulate(experiment(aggregation="secure"), tmp_path, through=through)
    assert "\n" not in str(stopped.value)
    reasons = [r.error.reason for s, r in between[0].replies if s == stage and r.error]
    assert any(told in reason for reason in reasons), {*reasons}
    assert len(reasons) > 6  # so that fewer than 14 of 20 are left
