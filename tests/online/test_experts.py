"""Experts: weights by hand and by definition, and what changes nothing."""

from math import log, sqrt

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.online.experts import adapt_ml_prod, hedge, msmwc
from engram.online.weights import equalize
from tests.online.support import play
from tests.samples import entry

PRIOR = np.array([0.2, 0.5, 0.3])
# cvxpy says so where a solver has stopped short of the 1e-12 that it is asked for.
pytestmark = pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
LOSSES = np.array([[1.0, 0.2, 0.0], [0.3, 0.8, 1.0], [0.0, 0.5, 0.1], [0.9, 0.0, 0.4]])


def weights(learner, losses, prior=None):
    """Of each round, and of the one after the last."""
    given = np.vstack([losses, 0 * losses[:1]])
    return play(learner, lambda t, p: given[t], len(given), prior)[0]


# --- Hedge -----------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [None, PRIOR])
def test_hedges_weights(prior):
    eta = sqrt(8 * log(3) / 50) / 2.5
    p = weights(hedge(3, horizon=50, loss_range=2.5), LOSSES, prior)
    before = np.vstack([np.zeros(3), np.cumsum(LOSSES, axis=0)])
    expected = (np.ones(3) if prior is None else prior) * np.exp(-eta * before)
    assert p == pytest.approx(expected / expected.sum(axis=1, keepdims=True), abs=1e-15)


# --- Adapt-ML-Prod ---------------------------------------------------------------------------


def literal_adapt_ml_prod(losses):
    """Gaillard et al., the algorithm with the steps of Corollary 4, without logarithms."""
    n = losses.shape[1]
    w, v = np.full(n, 1 / n), np.zeros(n)
    for loss in losses:
        eta = np.minimum(1 / 2, np.sqrt(log(n) / (1 + v)))
        p = eta * w / np.sum(eta * w)
        yield p
        r = p @ loss - loss
        v = v + r**2
        after = np.minimum(1 / 2, np.sqrt(log(n) / (1 + v)))
        w = (w * (1 + eta * r)) ** (after / eta)


def test_adapt_ml_prod_round_by_round():
    losses = np.random.default_rng(0).uniform(size=(60, 3)) ** np.array([0.2, 1, 3])
    expected = list(literal_adapt_ml_prod(losses))
    learner = adapt_ml_prod(3)
    assert weights(learner, losses)[:-1] == pytest.approx(np.array(expected), abs=1e-13)
    state = learner.init(None)
    for loss in losses:
        state = learner.observe(state, loss)
    assert len({*np.minimum(0.5, np.sqrt(log(3) / (1 + state.squares)))}) == 3  # steps differ


# --- MsMwC -----------------------------------------------------------------------------------


def by_definition(losses, q, eta):
    """argmin <losses, p> + D(p, q) on the simplex, D the divergence of sum_i p_i ln p_i / eta_i."""
    p = cp.Variable(len(q))
    divergence = cp.sum(cp.multiply(1 / eta, cp.kl_div(p, q)))
    problem = cp.Problem(cp.Minimize(losses @ p + divergence), [cp.sum(p) == 1])
    problem.solve(cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return p.value / p.value.sum()


def test_a_step_of_msmwc_is_its_convex_programme():
    for seed in range(8):
        with entry(seed):
            rng = np.random.default_rng(seed)
            n = int(rng.integers(2, 7))
            q, eta = rng.dirichlet(np.ones(n)), rng.uniform(0.05, 2, size=n)
            losses = rng.normal(size=n) * rng.choice([0.1, 1, 3])
            p = np.exp(equalize(np.log(q), eta, losses))
            assert p == pytest.approx(by_definition(losses, q, eta), abs=1e-6)
            assert p.sum() == pytest.approx(1, abs=1e-14)
            # Adding to all losses changes nothing, and equal steps are exponential weights.
            assert np.exp(equalize(np.log(q), eta, losses + 7.3)) == pytest.approx(p, abs=1e-13)
            plain = np.exp(equalize(np.log(q), np.full(n, 0.7), losses))
            tilted = q * np.exp(-0.7 * losses)
            assert plain == pytest.approx(tilted / tilted.sum(), abs=1e-14)


@pytest.mark.parametrize("optimistic", [False, True])
def test_msmwc_is_3_2(optimistic):
    eta, scale = np.array([0.3, 0.1, 0.02]), 2.0
    p = weights(msmwc(3, eta, optimistic=optimistic, loss_range=scale), LOSSES, PRIOR)
    hat, hint = PRIOR, np.zeros(3)
    for t, raw in enumerate(LOSSES):
        assert p[t] == pytest.approx(by_definition(hint, hat, eta), abs=1e-6)
        loss = (raw - raw @ p[t]) / scale
        hat = by_definition(loss + 16 * eta * (loss - hint) ** 2, hat, eta)
        hint = loss if optimistic else hint
    assert np.abs(p[-1] - PRIOR).max() > 0.01


# --- Bounds ----------------------------------------------------------------------------------

N, T = 5, 600


# --- What changes nothing --------------------------------------------------------------------

STEPS = np.array([0.5, 0.2, 0.1, 1.0])
MAKERS = {
    "hedge": lambda span, order: hedge(4, horizon=100, loss_range=span),
    "adapt_ml_prod": lambda span, order: adapt_ml_prod(4, loss_range=span),
    "msmwc": lambda span, order: msmwc(4, STEPS[order], loss_range=span),
    "msmwc, not optimistic": lambda span, order: msmwc(
        4, STEPS[order], optimistic=False, loss_range=span
    ),
}
AS_THEY_ARE = [0, 1, 2, 3]
ROUND = st.lists(st.sampled_from([0.0, -1.0, 1.0, 1e-300, 0.3, -0.99]), min_size=4, max_size=4)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@given(st.lists(st.tuples(ROUND, st.floats(-9, 9)), min_size=1, max_size=8))
def test_a_number_added_to_all_losses_of_a_round_changes_nothing(make, rounds):
    learner = make(2.0, AS_THEY_ARE)
    losses = np.array([loss for loss, _ in rounds])
    shifts = np.array([shift for _, shift in rounds])[:, None]
    p = weights(learner, losses)
    assert weights(learner, losses + shifts) == pytest.approx(p, abs=1e-12)
    assert (p >= 0).all()
    assert p.sum(axis=1) == pytest.approx(1, abs=1e-12)


def test_every_learner_of_experts_meets_the_contract():
    for name, make in MAKERS.items():
        with entry(name):
            check_order_and_units_of_losses_do_not_matter(make)
            check_an_expert_that_is_always_bad_loses_all(make(2.0, AS_THEY_ARE))
            check_an_expert_of_weight_zero_keeps_it(make(2.0, AS_THEY_ARE))
            check_losses_beyond_their_range_are_refused(make(2.0, AS_THEY_ARE))


def check_order_and_units_of_losses_do_not_matter(make):
    order = [2, 0, 3, 1]
    losses = np.random.default_rng(5).uniform(-1, 1, size=(30, 4))
    p = weights(make(2.0, AS_THEY_ARE), losses)
    other = weights(make(14.0, order), 7 * losses[:, order])
    assert other == pytest.approx(p[:, order], abs=1e-12)


def check_an_expert_that_is_always_bad_loses_all(learner):
    p = weights(learner, np.tile([0.0, 0.1, 0.2, 2.0], (5000, 1)))
    assert np.isfinite(p).all()
    assert p[-1].sum() == pytest.approx(1, abs=1e-12)
    assert p[-1, 3] < 1e-6
    assert p[-1, 0] > 0.9


def check_an_expert_of_weight_zero_keeps_it(learner):
    losses, prior = np.tile([1.0, 0, 0.5, 0.7], (20, 1)), np.array([0.4, 0.0, 0.6, 0.0])
    p = weights(learner, losses, prior)
    assert (p[:, [1, 3]] == 0).all()
    assert p[-1, 2] > 0.6
    small = weights(learner, losses, np.array([1 - 1e-6, 1e-6, 0.0, 0.0]))
    assert small[0, 1] == pytest.approx(1e-6)


def check_losses_beyond_their_range_are_refused(learner):
    state = learner.init(None)
    with pytest.raises(ValueError, match="the losses' range must be at most the declared loss_ran"):
        learner.observe(state, np.array([0.0, 0.0, -1.0, 1.1]))
    learner.observe(state, np.array([50.0, 50.0, 49.0, 51.0]))


def test_what_cannot_be_is_refused():
    for make, told in [
        (lambda: hedge(1, horizon=3), "size must be at least 2, got 1"),
        (lambda: hedge(3, horizon=0), "horizon must be at least 1, and finite, got 0"),
        (lambda: hedge(3, horizon=3, loss_range=0.0), "loss_range must be finite and positive"),
        (lambda: adapt_ml_prod(1), "size must be at least 2, got 1"),
        (lambda: msmwc(2, np.array([0.1, 0.0])), "steps must be finite and positive"),
        (lambda: msmwc(2, np.nan), "steps must be finite and positive, got nan"),
        (lambda: msmwc(2, np.ones(3)), r"steps' shape must be \(\) or \(2,\), got \(3,\)"),
        (
            lambda: hedge(2, horizon=3).init(np.array([0.7, 0.7])),
            "start's distance from the domain must be 0, got 0.28",
        ),
    ]:
        with entry(make, told), pytest.raises(ValueError, match=told):
            make()
