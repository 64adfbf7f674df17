"""Sinewave regression: draws, the problem by hand, and sweeps of runs side by side."""

import math

import numpy as np
import pytest
import torch
from torch.func import grad

from engram.core.tree import add_scaled
from engram.meta.single_node import Draw, Episode
from engram.meta.studies.methods import METHODS, RuleArguments
from engram.meta.studies.sinewave import UNSEEN, Sinewave
from engram.meta.studies.sweep import EpisodeSampler, Sweep, SweepRun, check_sweep, run_sweep
from engram.networks.built_in import build_model
from tests.samples import sampled
from tests.support import squared_error

NETWORK = build_model("mlp", input_shape=(1,), outputs=1, hidden=(40, 40))
LOSS = squared_error(NETWORK)
REGRESSIONS = [name for name in METHODS if name != "protonet"]


@pytest.fixture(scope="module")
def waves():
    return Sinewave()


def sweep(*runs, iterations=12, size=2, hessian="exact"):
    return Sweep(tuple(runs), size, 3, 0.01, hessian, iterations)


def run(method, seed=0, beta=0.5, eta=0.01):
    return SweepRun(method, method, beta, eta, seed)


# --- Draws -------------------------------------------------------------------------------


def test_draws_depend_on_seed_and_iteration_alone():
    few, many = Draw(3, (2, 2)), Draw(None, (5,))
    alone = EpisodeSampler([4], 25, lambda t: (few,))
    beside = EpisodeSampler([7, 4, 9, 4], 25, lambda t: (few, many))
    for t in (0, 1, 63, 64, 200):
        (mine,), (theirs, _) = alone.draw(t), beside.draw(t)
        for r in (1, 3):
            assert mine.tasks[0].equal(theirs.tasks[r])
            assert mine.uniforms[0].equal(theirs.uniforms[r])
        assert not theirs.uniforms[0].equal(theirs.uniforms[1])
    again = EpisodeSampler([4], 25, lambda t: (few,))
    assert again.draw(63)[0].uniforms.equal(alone.draw(63)[0].uniforms)
    assert not again.draw(64)[0].uniforms.equal(alone.draw(0)[0].uniforms)


def test_tasks_are_drawn_uniformly_without_replacement():
    sampler = EpisodeSampler([0], 5, lambda t: (Draw(2, (1,)), Draw(2, (1,)), Draw(None, (1,))))
    counts = torch.zeros(2, 5, 5)
    for t in range(4000):
        *pairs, every = sampler.draw(t)
        assert every.tasks.tolist() == [[0, 1, 2, 3, 4]]
        for i, pair in enumerate(pairs):
            a, b = pair.tasks[0].tolist()
            counts[i, a, b] += 1
    assert (counts.diagonal(dim1=1, dim2=2) == 0).all()
    # Each ordered pair 4000 / 20 = 200 times, s.d. 13.8.
    others = counts[:, ~torch.eye(5, dtype=torch.bool)]
    assert (others - 200).abs().max() < 5 * 13.8


# --- The problem -------------------------------------------------------------------------


def test_training_tasks_are_the_papers(waves):
    tasks = torch.arange(25).unsqueeze(0)
    x, y = waves.batch(tasks, torch.full((1, 25, 1), 0.65))
    assert x[0, :, 0, 0].tolist() == pytest.approx([1.5] * 25)
    wanted = [a * math.sin(i * math.pi / 5 + 1.5) for a in range(1, 6) for i in range(1, 6)]
    assert y[0, :, 0, 0].tolist() == pytest.approx(wanted, abs=1e-5)


def adapt(w, batch, steps):
    for _ in range(steps):
        w = add_scaled(w, -0.01, grad(LOSS)(w, batch))
    return w


def rows(amplitude, phase, uniforms):
    x = (10 * uniforms - 5).unsqueeze(-1)
    return x, amplitude * torch.sin(x + phase)


def test_errors_by_hand(waves):
    models = [waves.start(0), waves.start(1)]
    w = waves.layout.pack(models)
    errors, (unseen, fits) = waves.error(w, "maml"), waves.test(w)
    for r, model in enumerate(models):
        total = 0.0
        for i in range(25):
            amplitude, phase = 1 + i // 5, (1 + i % 5) * math.pi / 5
            seen = waves._seen_points[i]
            near = adapt(model, rows(amplitude, phase, seen[:100]), 1)
            total += LOSS(near, rows(amplitude, phase, seen[100:])).item() / 25
        assert errors[r].item() == pytest.approx(total, rel=1e-4)
        for i, (amplitude, phase) in enumerate(UNSEEN):
            drawn = range(i, 100, 5)
            losses = [
                LOSS(
                    adapt(model, rows(amplitude, phase, waves._shots[j]), 10),
                    rows(amplitude, phase, waves._points[j]),
                ).item()
                for j in drawn
            ]
            assert unseen[r, i].item() == pytest.approx(sum(losses) / 20, rel=1e-3)
        near = adapt(model, rows(*UNSEEN[0], waves._shots[0]), 10)
        fit = NETWORK.apply(near, torch.linspace(-5, 5, 100).unsqueeze(1))[:, 0]
        torch.testing.assert_close(fits[r, 0], fit, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(w, waves.layout.pack(models))  # tested on copies


def test_rows_to_adapt_to_are_others_than_those_to_score_on(waves):
    for shots, points in zip(waves._shots, waves._points, strict=True):
        assert not set(shots.tolist()) & set(points.tolist())


# --- Sweeps ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "hessian"),
    sampled(
        [(name, "exact") for name in REGRESSIONS]
        + [("moml-v2", "first-order"), ("moml-v2", "finite-difference")],
        [("maml", "exact"), ("moml-v2", "exact"), ("moml-v2", "first-order")],
    ),
)
def test_runs_side_by_side_are_each_the_same_alone(waves, method, hessian):
    """One of them diverges; all see as many rows as MAML does."""
    alike = {"iterations": 50, "hessian": hessian}
    runs = [
        run(method, 1, eta=1e4, beta=0.9),
        run(method, 2, 0.5, 0.001),
        run(method, 3, 0.9, 5e-3),
    ]
    found = run_sweep(waves, sweep(*runs, **alike))
    assert np.isinf(found.errors[0, -1])
    assert found.w["flat"][0].isnan().all()
    for r in (1, 2):
        alone = run_sweep(waves, sweep(runs[r], **alike))
        torch.testing.assert_close(found.w["flat"][r], alone.w["flat"][0], rtol=0, atol=2e-6)
        np.testing.assert_allclose(found.errors[r], alone.errors[0], rtol=1e-4)
        assert found.samples == alone.samples
    budget = 50 * 3 * 2 * (2 if hessian == "first-order" else 3)
    assert budget - 25 * 2 * 3 < found.samples[-1] <= budget  # NASA sees most in an iteration
    assert len(found.errors[0]) == len(found.samples) == 1 + min(40, found.iterations)


@pytest.mark.parametrize("method", ["moml-v1", "bspiderboost"])
def test_eta_falls_to_a_tenth_in_the_last_quarter_but_for_bspiderboost(waves, method):
    arguments = RuleArguments(waves.loss, None, 25, 3, 2, 0.01, "exact")
    one, total = torch.ones(1), 8 if method == "moml-v1" else 6
    fast, slow = (METHODS[method].build(arguments, one, eta * one) for eta in (0.02, 0.002))
    sampler = EpisodeSampler([0], 25, fast.draws)
    state = fast.init(waves.layout.pack([waves.start(0)]))
    for t in range(total):
        rule = slow if t >= 6 and method == "moml-v1" else fast
        drawn = [
            Episode(tasks, tuple(zip(*(part.split(2, 2) for part in rows), strict=True)))
            for tasks, uniforms in sampler.draw(t)
            for rows in [waves.batch(tasks, uniforms)]
        ]
        state = rule.step(state, tuple(drawn))
    # As many rows as 8 iterations of MAML see are 6 of BSpiderBoost: 10 + 3 + 3 tasks, two batches.
    found = run_sweep(waves, sweep(run(method, eta=0.02, beta=1.0), iterations=8))
    assert found.iterations == total
    torch.testing.assert_close(found.w, state.w, rtol=0, atol=1e-7)


def test_memories_are_counted(waves):
    sizes = [check_sweep(waves, sweep(run(m))) for m in ("moml-v1", "nasa", "bsgd")]
    assert sizes == [25 * 1761 * 4, 25 * 1761 * 4, 0]


def test_a_row_of_classes_is_needed_to_match_prototypes(waves):
    arguments = RuleArguments(waves.loss, None, 25, 3, 2, 0.01, "exact")
    with pytest.raises(ValueError, match="protonet needs classes"):
        METHODS["protonet"].build(arguments, torch.ones(1), torch.ones(1))


@pytest.mark.full
def test_memory_beats_maml_at_the_same_step(waves):
    # Without Hessians, as the paper's figures are; with K = 1, MAML's adaptation is mostly noise.
    errors = {}
    for method, beta in (("maml", 1.0), ("moml-v1", 0.3)):
        runs = [run(method, seed=seed, beta=beta, eta=0.01) for seed in range(4)]
        trace = run_sweep(waves, sweep(*runs, iterations=4000, size=1, hessian="first-order"))
        errors[method] = trace.errors[:, -1]
    assert (errors["moml-v1"] < 0.9 * errors["maml"]).all()
