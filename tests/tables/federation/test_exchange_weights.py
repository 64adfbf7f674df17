"""What sites claim of their rows, their noise and their losses buys them bounded influence."""

import numpy as np
import pytest

from engram.runs.run import Run
from engram.tables.federation.molar_messages import SITES
from engram.wire.messages import EVALUATE
from engram.wire.wire import ROSTER
from tests.tables.federation.sites import (
    SITES_THERE,
    Odd,
    in_one_place,
    odd,
    run,
    settings,
    with_arrays,
)


def precise(client, reply):
    """Client 2 says that it is sure of its 7s."""
    if client != 2:
        return reply
    sure = {"sigma": np.array([1e-9]), "freedom": np.array([np.inf])}
    return with_arrays(reply, coef=np.full((1, 21), 7.0), **sure)


def test_claims_of_precision_are_bounded_and_named(tmp_path, warnings_of_engram):
    found, _ = run(tmp_path / "bounded", grid=odd(precise))
    # As one of twelve with five times the usual weight, 5 / (5 + 11) at most: no coefficient leaves
    # the range of the others'.
    owns = [s.coef for s in in_one_place(settings(), leave_out=[2]).sites_]
    assert (np.min(owns, axis=0) <= found["shared"]["coef"]).all()
    assert (found["shared"]["coef"] <= np.max(owns, axis=0)).all()
    (row,) = Run.open(tmp_path / "bounded").rows()
    assert row["bounded"] == [2]
    assert warnings_of_engram.text.count("max-weight") == 1
    words = "client 2 would have more weight, by the rows and the noise that it"
    assert words in warnings_of_engram.text


def test_without_a_bound_they_are_believed_and_named(tmp_path, warnings_of_engram):
    found, _ = run(tmp_path / "taken-in", grid=odd(precise), max_weight=1e9)
    assert set(found["shared"]["coef"]) == {7.0}
    # Its 99 degrees of freedom, which are all that it can have, are set beside 4 of what is usual.
    assert "client 2 has 74 % of the median's weight" in warnings_of_engram.text
    found, _ = run(tmp_path / "not", grid=odd(precise), max_weight=1e9, site_weights="equal")
    assert max(np.abs(found["shared"]["coef"])) < 1


def test_counts_and_classes_have_no_noise_of_their_own(tmp_path):
    def lie(client, reply):
        return with_arrays(reply, sigma=np.array([1e-9])) if client == 4 else reply

    special = {"dataset": "sparse-poisson", "family": "poisson"}
    found, _ = run(tmp_path / "run", grid=odd(lie), **special)
    assert list(found["left-out"]) == ["4"]
    assert "its noise has the standard deviation 1e-09" in found["left-out"]["4"]


def test_rows_that_a_site_claims_are_bounded(tmp_path):
    """A site that says so to the roster, and again with its estimate."""
    claim = 2**31 - 1

    def lie(client, reply):
        if client != 4:
            return reply
        if ROSTER in reply.content:
            reply.content[ROSTER]["examples"] = [claim]
            return reply
        if SITES in reply.content:
            return with_arrays(reply, size=np.array([float(claim)]))
        return reply

    honest, _ = run(tmp_path / "honest")
    found, _ = run(tmp_path / "run", grid=lambda host, hosts: Odd(host, hosts, lie))
    assert found["left-out"] == {}
    # Each has 120 rows; the liar counts as five.
    assert (honest["rows"], found["rows"]) == (12 * 120, 16 * 120)
    (row,) = Run.open(tmp_path / "run").rows()
    assert row["bounded"] == [4]


def test_one_sites_losses_do_not_make_the_means(tmp_path):
    def lie(client, reply):
        if client == 4:
            reply.content["clients"].update({"loss-own": [3e38], "loss-personal": [0.0]})
        return reply

    honest, _ = run(tmp_path / "honest")
    found, _ = run(tmp_path / "run", grid=odd(lie, kind=EVALUATE))
    assert found["scored"] == SITES_THERE
    median = honest["loss-own-median"]
    own = np.delete(honest["clients"]["loss-own"], 4)
    # A hundred times the sixth smallest of twelve, which is an honest one.
    assert found["loss-own"] == pytest.approx((own.sum() + 100 * np.sort(own)[5]) / 12)
    for kind in ("own", "personal"):
        others = np.delete(honest["clients"][f"loss-{kind}"], 4)
        assert others.min() <= found[f"loss-{kind}-median"] <= others.max()
    assert honest["loss-own"] == pytest.approx(np.mean(honest["clients"]["loss-own"]))
    assert median == pytest.approx(np.median(honest["clients"]["loss-own"]))
