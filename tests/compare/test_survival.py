"""References of survival: Kaplan-Meier and Cox by their definitions, and in comparisons."""

import numpy as np
from scipy.optimize import minimize

from engram.compare.references import CONSTANT, LINEAR, POOLED, references
from engram.compare.survival import cox_models, kaplan_meier
from engram.data.readers.in_memory import hold
from tests.support import small

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3))
DIED, LOST = RNG.exponential(3 * np.exp(X @ [-1.0, 0.5, 0.0])), RNG.uniform(0, 8, 240)
Y = np.column_stack([np.minimum(np.minimum(DIED, LOST).round(1), 5), (DIED <= LOST) & (DIED < 5)])


def test_a_curve_is_kaplan_and_meiers_and_a_model_coxs_with_breslows_baseline():
    time, event = Y.T
    z = kaplan_meier(Y, 5)
    alive = np.cumprod(1 / (1 + np.exp(z)))
    deaths = np.unique(time[event > 0])
    at = [((time == t) & (event > 0)).sum() / (time >= t).sum() for t in deaths]
    for end in range(1, 6):
        expected = np.prod([1 - share for t, share in zip(deaths, at, strict=True) if t <= end])
        np.testing.assert_allclose(alive[end - 1], expected, rtol=1e-9)

    def penalized(beta):
        risk, loss = X @ beta, 0.0
        for i in np.flatnonzero(event):
            loss += np.log(np.exp(risk[time >= time[i]]).sum()) - risk[i]
        return loss / 240 + 0.05 * beta @ beta

    beta = minimize(penalized, np.zeros(3), tol=1e-10).x
    (single,), (several,) = (list(cox_models(X, Y, [0.1], cells)) for cells in (1, 5))
    np.testing.assert_allclose(single(np.eye(3))[:, 0], beta, atol=1e-4)
    rise = [
        sum(
            ((time == t) & (event > 0)).sum() / np.exp(X[time >= t] @ beta).sum()
            for t in deaths
            if end < t <= end + 1 or t == end == 0
        )
        for end in range(5)
    ]
    hazards = 1 - np.exp(-np.exp(X[:4] @ beta)[:, None] * rise)
    np.testing.assert_allclose(1 / (1 + np.exp(-several(X[:4]))), hazards, rtol=1e-3)
    everybody = kaplan_meier(np.column_stack([np.ones(4), np.ones(4)]), 5)
    assert np.isfinite(everybody).all()


def test_networks_are_compared_with_a_curve_and_cox_models():
    data = hold({"x": X.astype(np.float32), "y": Y})
    usual = {"dataset": data, "partition": "iid", "num_clients": 4, "task": "survival"}
    found = references(small(**usual, horizon=5, time_cells=5, metrics="c-index,integrated-brier"))
    assert found.notes == {CONSTANT: "Kaplan-Meier"} | dict.fromkeys(
        (LINEAR, POOLED), "Cox, with ridge"
    )
    c_index, brier = (
        {name: np.mean(of[metric]) for name, of in found.scores.items()}
        for metric in ("c-index", "integrated-brier")
    )
    assert c_index[CONSTANT] == 0.5
    assert c_index[POOLED] > 0.7
    assert brier[POOLED] < brier[CONSTANT] < 0.25
    alone = references(small(**usual, loss="cox")).scores
    assert np.mean(alone[POOLED]["c-index"]) > 0.7
