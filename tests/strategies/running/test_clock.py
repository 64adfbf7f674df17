"""The simulated clock: seconds by hand, traces, rounds that wait for some, and the event queue."""

import math
from functools import partial

import numpy as np
import pytest

from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.strategies.running.clock import (
    Flight,
    Flights,
    Pace,
    drawn_paces,
    in_time,
    landings,
    traced_paces,
)
from tests.samples import entry

HEAD = "client,step-seconds,bandwidth"


def test_a_round_takes_its_steps_and_its_bytes():
    # 5 steps of 0.2 s, and 3,000 bytes at 1,000 a second, from second 7 on
    assert Pace(0.2, 1000.0).ends(7.0, 5, 3000) == 7 + 1 + 3


def test_drawn_clients_are_the_median_one_but_for_stragglers():
    e = Experiment(clock="drawn,stragglers=0.1,slowdown=10").drawn_clock
    paces = drawn_paces(e, 0, 50)
    assert sorted(pace.step for pace in paces) == pytest.approx([0.1] * 45 + [1.0] * 5)
    assert sorted(pace.bandwidth for pace in paces) == pytest.approx([1e5] * 5 + [1e6] * 45)
    assert drawn_paces(e, 0, 50) == paces != drawn_paces(e, 1, 50)
    wide = drawn_paces(Experiment(clock="drawn, speed-spread=0.5").drawn_clock, 0, 4000)
    logs = np.log([pace.step for pace in wide])
    # Standard errors of a mean and a deviation of 4000: 0.5 / 63, and 0.5 / 89; bounds of five.
    assert logs.mean() == pytest.approx(math.log(0.1), abs=0.04)
    assert logs.std() == pytest.approx(0.5, abs=0.03)


def test_a_trace_is_read_by_clients_names_or_numbers(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(f"hours,{HEAD}\n24,b,0.5,100\n8,a,2,1e6\n")
    assert traced_paces(path, 2, {0: "a", 1: "b"}) == [Pace(2.0, 1e6), Pace(0.5, 100.0)]
    path.write_text(f"{HEAD}\n1,1,1\n0,2,2\n")
    assert traced_paces(path, 2, {}) == [Pace(2.0, 2.0), Pace(1.0, 1.0)]


def test_an_impossible_trace_is_refused_in_one_line(tmp_path):
    for text, words in [
        (f"{HEAD}\n0,1,1\n", r"must have a line for each of 3 clients, lacks \[1, 2\]"),
        (f"{HEAD}\n0,1,1\n1,,1\n2,1,1\n", r"line 3: step-seconds must be a number above 0, got ''"),
        (f"{HEAD}\n0,-1,1\n", r"line 2: step-seconds must be a number above 0, got '-1'"),
        (f"{HEAD}\n0,1,0\n", r"line 2: bandwidth must be a number above 0, got '0'"),
        (f"{HEAD}\n0,1,inf\n", r"line 2: bandwidth must be a number above 0, got 'inf'"),
        (f"{HEAD}\n0,1\n", r"line 2: bandwidth must be a number above 0, got ''"),
        (f"{HEAD}\n7,1,1\n", r"line 2: client must be a client of the federation, once, got '7'"),
        (f"{HEAD}\n0,1,1\n0,1,1\n", r"line 3: client must be .* once, got '0'"),
        (
            "client,bandwidth\n0,1\n",
            r"must be a CSV file with columns .* \(it lacks step-seconds\)",
        ),
        ("", r"it lacks client, step-seconds, bandwidth"),
    ]:
        with entry(text):
            path = tmp_path / "trace.csv"
            path.write_text(text)
            with pytest.raises(Refused, match=words) as caught:
                traced_paces(path, 3, {})
            assert "\n" not in str(caught.value)


def test_a_trace_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(Refused, match=r"clock must be a CSV file \(No such file"):
        traced_paces(tmp_path / "none.csv", 3, {})
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(Refused, match="clock must be a CSV file in UTF-8"):
        traced_paces(tmp_path / "binary.csv", 3, {})


def test_who_answers_in_time():
    for wanted, deadline, clients, end in [
        (4, 0.0, [1, 2, 5, 8], 30.0),  # all
        (4, 5.0, [2, 5, 8], 15.0),  # until the deadline, second 15
        (3, 0.0, [2, 5, 8], 14.0),  # over-selection: the third answer ends the round
        (3, 5.0, [2, 5, 8], 14.0),
        (2, 0.0, [5, 8], 12.0),  # of two at once, the smaller number
        (9, 0.0, [1, 2, 5, 8], 30.0),
        (4, 1.0, [], 11.0),
    ]:
        with entry(wanted, deadline, clients, end):
            ends = {2: 14.0, 5: 12.0, 8: 12.0, 1: 30.0}
            assert in_time(ends, now=10.0, wanted=wanted, deadline=deadline) == (clients, end)


first_landings = partial(landings, Flights(), 0)


def in_order(wave, wanted, busy):
    return [client for client in range(10) if client not in busy][:wanted]


def after(takes):
    return lambda client, now: now + takes.get(client, 1.0)


def test_equal_clients_and_a_buffer_of_all_at_work_are_synchronous():
    flights, waves = Flights(), []

    def draw(wave, wanted, busy):
        assert not busy
        waves.append(wave)
        return [wave % 3, wave % 3 + 5]

    for version in range(4):
        landed, flights = landings(
            flights, version, at_work=2, wanted=2, draw=draw, ends=lambda client, now: now + 2.5
        )
        client = (version + 1) % 3
        end = 2.5 * (version + 1)
        assert landed == [Flight(client, version, end), Flight(client + 5, version, end)]
        assert flights == Flights(end, version + 1, ())
    assert waves == [1, 2, 3, 4]


def test_a_slow_client_holds_nobody_up():
    flights, every, how = Flights(), [], {"at_work": 2, "wanted": 1, "draw": in_order}
    for version in range(5):
        landed, flights = landings(flights, version, **how, ends=after({1: 3.5}))
        every += [(flight.client, flight.version, flight.lands) for flight in landed]
    # 0 and 1 are asked at 0; 0 answers at 1, 2, 3; then 1 (of model 0) at 3.5, and 0 at 4.
    assert every == [(0, 0, 1.0), (0, 1, 2.0), (0, 2, 3.0), (1, 0, 3.5), (0, 3, 4.0)]


def test_nobody_works_twice_on_the_same_model():
    landed, flights = first_landings(at_work=2, wanted=3, draw=in_order, ends=after({1: 10.0}))
    assert [(flight.client, flight.lands) for flight in landed] == [(0, 1.0), (2, 2.0), (3, 3.0)]
    assert [flight.client for flight in flights.aloft] == [1]


def test_a_buffer_ends_short_where_nobody_is_left_to_ask():
    def draw(wave, wanted, busy):
        return [1] if 1 not in busy else []

    landed, flights = first_landings(at_work=3, wanted=3, draw=draw, ends=after({}))
    assert [flight.client for flight in landed] == [1]
    assert flights.aloft == ()


def test_answers_of_one_second_fill_a_buffer_before_the_next():
    landed, flights = first_landings(at_work=4, wanted=3, draw=in_order, ends=after({}))
    assert [flight.client for flight in landed] == [0, 1, 2]
    assert flights == Flights(1.0, 1, (Flight(3, 0, 1.0),))
