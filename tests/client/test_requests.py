"""The round of a request: a number that random streams and schedules can count with."""

import pytest
from flwr.app import ConfigRecord, RecordDict

from client.requests import durable_of, round_of
from federation.errors import EngramError
from federation.flower import recorddict_from_bytes, recorddict_to_bytes


def request(**entries):
    return RecordDict({"config": ConfigRecord(entries)})


@pytest.mark.parametrize("number", [0, 1, 10**6])
def test_a_round_that_a_run_may_have(number):
    assert round_of(request(**{"server-round": number})) == number


def test_the_first_round_where_nothing_is_said():
    assert round_of(request()) == 1


@pytest.mark.parametrize("number", [-1, 10**6 + 1, 2**62, 0.5, True, "1"])
def test_no_run_has_another_round(number):
    with pytest.raises(EngramError, match="server-round must be a whole number"):
        round_of(request(**{"server-round": number}))


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_a_number_that_flower_carries_and_no_array_holds_is_refused(number):
    sent = recorddict_from_bytes(recorddict_to_bytes(request(durable=number)))
    assert sent["config"]["durable"] == number
    with pytest.raises(
        EngramError, match=f"durable must be a whole number of 64 bits, got {number}"
    ):
        durable_of(sent)
