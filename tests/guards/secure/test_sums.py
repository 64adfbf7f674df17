"""Sums from one model: over the same sites, clients and weights alone."""

from functools import partial

import pytest

from engram.guards.secure.secure_sums import Summed, Sums
from engram.guards.secure.session import Session
from engram.runs.record import RunRecord
from engram.settings.errors import Refused, RunStopped
from engram.simulations.engine import simulate
from tests.guards.secure.test_secure import Between, experiment
from tests.support import assert_same


@pytest.mark.parametrize(
    ("before", "after"),
    [([], []), ([3], [3]), ([], [3]), ([3], []), ([3], [4]), ([3], [3, 4]), ([], [*range(6)])],
)
def test_sums_from_one_model_are_over_the_same_sites(tmp_path, before, after):
    """Two runs by one seed begin from one model: the difference of their sums is of who differs."""
    hosts = []

    def through(host, gone):
        hosts.append(host)
        return Between(hosts[0], {"train": gone})

    e = experiment(aggregation="secure")
    simulate(e, tmp_path / "one", through=lambda host: through(host, before))
    again = partial(simulate, e, tmp_path / "other", through=lambda host: through(host, after))
    if before == after:
        again()
        one, other = (
            RunRecord.open(tmp_path / n).load_checkpoint().model for n in ("one", "other")
        )
        assert_same(one, other)
        return
    with pytest.raises(RunStopped, match="sites of a sum must be those of the first sum of updat"):
        again()


def test_a_node_remembers_sums_after_a_restart(tmp_path):
    asked = ((0, 1), (1, 1), (2, 1))
    session = Session("1" * 16, 1, asked, 2, 1.0, most=5, model="a" * 64)
    summed = Summed([0], frozenset({0, 1}))
    Sums(tmp_path).note(0, session, summed)
    later = session._replace(training="2" * 16, number=7)
    Sums(tmp_path).check(0, later, summed)
    weights = later._replace(most=6)
    clients = later._replace(asked=((0, 1), (1, 2), (2, 1)))
    absent = later._replace(asked=((0, 1), (1, 1), (2, 3)))  # whose number of clients is not summed
    Sums(tmp_path).check(0, absent, summed)
    for terms, one in (
        (weights, summed),
        (clients, summed),
        (later, Summed([3], summed.survivors)),
        (later, Summed([0], frozenset({0, 1, 2}))),
        (later, Summed([0], frozenset({0, 2}))),
    ):
        with pytest.raises(Refused, match="sites of a sum must be those of the first"):
            Sums(tmp_path).check(0, terms, one)
        with pytest.raises(Refused, match="sites of a sum must be those of the first"):
            Sums(tmp_path).note(0, terms, one)
    Sums(tmp_path).check(0, later._replace(model="b" * 64), Summed([0], frozenset({0, 2})))
    with pytest.raises(Refused, match="round must be above 1, whose sum client-0 has helped"):
        Sums(tmp_path).check(0, session)
