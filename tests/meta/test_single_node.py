"""Single-node meta-learning: closed forms on quadratics, reductions, and one contract for all."""

from functools import partial

import pytest
import torch

from engram.cohort.stacked_models import stacked_loss
from engram.meta.bspiderboost import bsgd, bspiderboost
from engram.meta.meta_gradient import fine_tune
from engram.meta.moml import adaptive_steps, constant_steps, moml_v1, moml_v2
from engram.meta.nasa import nasa
from engram.meta.single_node import Episode, local_moml, maml, reptile
from tests.samples import entry
from tests.support import DIM, assert_same, draw, gen, moments, quadratic

R, N, B, K = 2, 4, 2, 5
ALPHA, BETA, ETA = 0.3, 0.4, 0.07
QUADRATIC = stacked_loss(quadratic)
SIZES = {"tasks": N, "tasks_per_step": B, "batch_size": K}
FEW = {"tasks_per_step": B, "batch_size": K}


def rules(loss, *, hessian="exact", beta=BETA, eta=ETA):
    """Every algorithm for a regression, with steps that may differ between runs."""
    common = {"alpha": ALPHA, "eta": eta, "hessian": hessian}
    memory = {"alpha": ALPHA, "beta": beta, "eta": eta, "hessian": hessian}
    steps = constant_steps(beta=beta, eta=eta)
    return {
        "moml-v1": moml_v1(loss, **SIZES, **memory),
        "moml-v2": moml_v2(loss, **SIZES, alpha=ALPHA, steps=steps, hessian=hessian),
        "maml": maml(loss, **FEW, **common),
        "local-moml": local_moml(loss, **FEW, **memory, local_steps=3, initial_batch_size=4),
        "bsgd": bsgd(loss, **FEW, **common),
        "bspiderboost": bspiderboost(loss, **FEW, large_tasks=3, period=2, **common),
        "nasa": nasa(loss, tasks=N, batch_size=K, gamma=0.6, **memory),
        "reptile": reptile(loss, **FEW, alpha=ALPHA, eta=eta, local_steps=2),
    }


def start(runs=R, seed=50):
    return {"w": draw(seed, runs, DIM)}


def episodes(rule, t, runs=R, seed=0):
    """What the rule wants at t, of quadratics; run r's do not depend on how many runs there are."""
    made = []
    for e, wanted in enumerate(rule.draws(t)):
        count = wanted.tasks or N
        order = [torch.randperm(N, generator=gen(seed, t, e, r))[:count] for r in range(runs)]
        tasks = torch.arange(N).expand(runs, N) if wanted.tasks is None else torch.stack(order)
        batches = []
        for i, size in enumerate(wanted.sizes):
            keys = [hash((seed, t, e, i, r)) % 10**6 for r in range(runs)]
            x = torch.stack([draw(key, count, size, DIM) for key in keys])
            batches.append((x, torch.stack([draw(key + 1, count, size) for key in keys])))
        made.append(Episode(tasks, tuple(batches)))
    return tuple(made)


def run(rule, steps, w=None, **given):
    state = rule.init(start() if w is None else w)
    for t in range(steps):
        state = rule.step(state, episodes(rule, t, len(next(iter(state.w.values()))), **given))
    return state


def one(model, r, *i):
    return {name: leaf[(r, *i)] for name, leaf in model.items()}


def curved(params, batch):
    """A loss whose Hessian depends on the parameters."""
    x, y = batch
    return (torch.tanh(x @ params["w"]) - y).square().mean()


def adapted(w, batch, loss=quadratic):
    return w - ALPHA * torch.func.grad(lambda v: loss({"w": v}, batch))(w)


def meta_gradient(w, u, second, third, loss=quadratic):
    """(I - alpha hess L2(w)) grad L3(u): the Hessian is at the model, not at the memory."""
    hessian = torch.func.hessian(lambda v: loss({"w": v}, second))(w)
    slope = torch.func.grad(lambda v: loss({"w": v}, third))(u)
    return slope - ALPHA * hessian @ slope


def of(episode, r, i):
    """The batches of the i-th task of run r."""
    return [tuple(part[r, i] for part in b) for b in episode.batches]


# --- MOML v1 -----------------------------------------------------------------------------


def test_v1_by_hand():
    rule = moml_v1(stacked_loss(curved), **SIZES, alpha=ALPHA, beta=BETA, eta=ETA)
    state, w = rule.init(start()), start()["w"]
    memories = [{} for _ in range(R)]
    for t in range(6):
        (episode,) = drawn = episodes(rule, t)
        for r in range(R):
            deltas = []
            for i, task in enumerate(episode.tasks[r].tolist()):
                first, second, third = of(episode, r, i)
                fresh = adapted(w[r], first, curved)
                u = memories[r].get(task, fresh)
                memories[r][task] = u = (1 - BETA) * u + BETA * fresh
                deltas.append(meta_gradient(w[r], u, second, third, curved))
            w[r] = w[r] - ETA * torch.stack(deltas).mean(0)
        state = rule.step(state, drawn)
        torch.testing.assert_close(state.w["w"], w)
    for r in range(R):
        assert state.known[r].nonzero().flatten().tolist() == sorted(memories[r])
        for task, u in memories[r].items():
            torch.testing.assert_close(state.u["w"][r, task], u)


@pytest.mark.parametrize("hessian", ["exact", "first-order", "finite-difference"])
def test_v1_without_memory_is_maml(hessian):
    common = {"alpha": ALPHA, "eta": ETA, "hessian": hessian}
    forgetful = run(moml_v1(QUADRATIC, **SIZES, beta=1.0, **common), 5)
    assert_same(forgetful.w, run(maml(QUADRATIC, **FEW, **common), 5).w, atol=1e-12)


def test_v1_with_all_tasks_is_nasa_without_averaged_gradients():
    memory = {"alpha": ALPHA, "beta": BETA, "eta": ETA}
    every = nasa(QUADRATIC, tasks=N, batch_size=K, gamma=1.0, **memory)
    v1 = moml_v1(QUADRATIC, tasks=N, tasks_per_step=N, batch_size=K, **memory)
    state, other = every.init(start()), v1.init(start())
    for t in range(5):
        shown = episodes(every, t)  # all tasks in order
        state, other = every.step(state, shown), v1.step(other, shown)
    assert_same(state.w, other.w, atol=1e-12)
    assert_same(state.u, other.u, atol=1e-12)


def test_nasa_averages_gradients():
    # In one dimension, with one row x = 1 for all: L = (w - y)^2 / 2, so without adaptation the
    # meta-gradient is w - y, and z a moving average of it.
    rule = nasa(QUADRATIC, tasks=1, batch_size=1, alpha=0.0, beta=1.0, gamma=0.25, eta=0.5)
    state, w, z = rule.init({"w": torch.tensor([[3.0]])}), 3.0, None
    for y in (1.0, -2.0, 5.0):
        rows = torch.ones(1, 1, 1, 1), torch.full((1, 1, 1), y)
        state = rule.step(state, (Episode(torch.zeros(1, 1, dtype=torch.int64), (rows,) * 3),))
        z = w - y if z is None else 0.75 * z + 0.25 * (w - y)
        w -= 0.5 * z
        assert state.w["w"].item() == pytest.approx(w)


# --- MOML v2 -----------------------------------------------------------------------------


def memories(state):
    """v2's memories u_i, of the offsets that it keeps."""
    shrink = state.shrink.reshape(-1, 1, 1)
    return state.center["w"].unsqueeze(1) + shrink * state.offset["w"]


def test_v2_is_what_alg_2_says_of_every_memory():
    for beta in [0.3, 0.9999, 1.0]:
        with entry(beta):
            steps = constant_steps(beta=beta, eta=ETA)
            rule = moml_v2(stacked_loss(curved), **SIZES, alpha=ALPHA, steps=steps)
            state, w = rule.init(start()), start()["w"]
            u = w.unsqueeze(1).repeat(1, N, 1)
            for t in range(40):  # with 0.9999, offsets take the shrinking in every third iteration
                moved, shown = drawn = episodes(rule, t)
                for r in range(R):
                    u[r] = (1 - beta) * u[r] + beta * w[r]
                    for i, task in enumerate(moved.tasks[r].tolist()):
                        (rows,) = of(moved, r, i)
                        u[r, task] += beta * (N / B) * (adapted(w[r], rows, curved) - w[r])
                    deltas = [
                        meta_gradient(w[r], u[r, task], *of(shown, r, i), curved)
                        for i, task in enumerate(shown.tasks[r].tolist())
                    ]
                    w[r] = w[r] - ETA * torch.stack(deltas).mean(0)
                state = rule.step(state, drawn)
            torch.testing.assert_close(memories(state), u, rtol=0, atol=1e-8)
            torch.testing.assert_close(state.w["w"], w, rtol=0, atol=1e-8)


def adaptive(eta, smoothness=2.0, rough=3.0):
    sizes = {"smoothness": smoothness, "hessian_smoothness": rough, "batch_size": K}
    return adaptive_steps(QUADRATIC, alpha=ALPHA, eta=eta, tasks_per_step=3, **sizes)


def test_v2s_adaptive_steps():
    smoothness, rough, eta = 2.0, 3.0, 0.05
    rule = moml_v2(QUADRATIC, **SIZES, alpha=ALPHA, steps=adaptive(eta, smoothness, rough))
    state = rule.init(start())
    torch.testing.assert_close(state.eta, torch.full((R,), eta / 8, dtype=torch.float64))
    for t in range(3):
        *_, seen = drawn = episodes(rule, t)
        assert seen.tasks.shape == (R, 3)
        wanted = []
        for r in range(R):
            gradients = [moments(*of(seen, r, i)) for i in range(3)]
            norms = [(a @ state.w["w"][r] - b).norm() for a, b in gradients]
            wanted.append(eta / (4 * smoothness + 2 * rough * ALPHA * sum(norms) / 3))
        shrink = state.shrink * (1 - 6 * smoothness**2 * eta ** (-1 / 3) * state.eta)
        state = rule.step(state, drawn)
        torch.testing.assert_close(state.eta, torch.stack(wanted))
        torch.testing.assert_close(state.shrink, shrink)


# --- The others --------------------------------------------------------------------------


def test_local_moml_on_one_node_is_the_mean_of_each_task_s_steps():
    rule = rules(QUADRATIC)["local-moml"]
    (episode,) = drawn = episodes(rule, 0)
    state = rule.step(rule.init(start()), drawn)
    for r in range(R):
        models = []
        for i in range(B):
            first, *others = of(episode, r, i)
            w = start()["w"][r]
            u = adapted(w, first)
            for h in range(0, 9, 3):
                newest, second, third = others[h : h + 3]
                u = (1 - BETA) * u + BETA * adapted(w, newest)
                w = w - ETA * meta_gradient(w, u, second, third)
            models.append(w)
        torch.testing.assert_close(state.w["w"][r], torch.stack(models).mean(0))


def test_fine_tuning_equals_closed_form_and_leaves_the_model_alone():
    rows, w = (draw(1, K, DIM), draw(2, K)), draw(10, DIM)
    a, b = moments(rows)
    fixed, before = torch.linalg.solve(a, b), w.clone()
    shrink = torch.linalg.matrix_power(torch.eye(DIM, dtype=torch.float64) - 0.1 * a, 10)
    tuned = fine_tune(quadratic, lr=0.1, steps=10)({"w": w}, rows)
    assert_same(tuned, {"w": fixed + shrink @ (w - fixed)}, atol=1e-10)
    assert torch.equal(w, before)


def test_bsgd_is_the_gradient_of_the_loss_after_adapting():
    rule = bsgd(QUADRATIC, **FEW, alpha=ALPHA, eta=ETA)
    (episode,) = drawn = episodes(rule, 0)
    w, after = start()["w"], rule.step(rule.init(start()), drawn).w["w"]
    for r in range(R):
        rows = [of(episode, r, i) for i in range(B)]

        def loss(v, rows=rows):
            return sum(quadratic({"w": adapted(v, one)}, two) for one, two in rows) / B

        torch.testing.assert_close(after[r], w[r] - ETA * torch.func.grad(loss)(w[r]))


def test_bspiderboosts_estimate_is_the_gradient_where_samples_do_not_change():
    # z telescopes: on the same samples at every iteration it is G(w) at each of them.
    rule = bspiderboost(QUADRATIC, **FEW, large_tasks=B, period=100, alpha=ALPHA, eta=ETA)
    plain = bsgd(QUADRATIC, **FEW, alpha=ALPHA, eta=ETA)
    shown = episodes(rule, 0)
    state, other = rule.init(start()), plain.init(start())
    for _ in range(5):
        state, other = rule.step(state, shown), plain.step(other, shown)
        assert_same(state.w, other.w, atol=1e-12)


def test_bspiderboost_keeps_its_estimate_where_the_two_points_coincide():
    rule = rules(QUADRATIC)["bspiderboost"]
    state = run(rule, 1)
    still = state._replace(before=state.w)  # and other samples than before
    assert_same(rule.step(still, episodes(rule, 1, seed=9)).z, state.z, atol=1e-15)


def test_bspiderboost_draws_a_large_batch_every_period():
    rule = rules(QUADRATIC)["bspiderboost"]
    assert [rule.draws(t)[0].tasks for t in range(5)] == [3, B, 3, B, 3]


def test_reptile_goes_part_of_the_way_to_the_tasks_mean():
    whole = reptile(QUADRATIC, **FEW, alpha=ALPHA, eta=1.0, local_steps=2)
    part = reptile(QUADRATIC, **FEW, alpha=ALPHA, eta=0.25, local_steps=2)
    (episode,) = drawn = episodes(whole, 0)
    ends = []
    for i in range(B):
        w = start()["w"][0]
        for rows in of(episode, 0, i):
            w = adapted(w, rows)
        ends.append(w)
    mean, w = torch.stack(ends).mean(0), start()["w"][0]
    torch.testing.assert_close(whole.step(whole.init(start()), drawn).w["w"][0], mean)
    moved = part.step(part.init(start()), drawn).w["w"][0]
    torch.testing.assert_close(moved, w + 0.25 * (mean - w))


# --- What holds for all ------------------------------------------------------------------


@pytest.mark.parametrize("name", rules(QUADRATIC))
def test_a_rule_learns_without_touching_the_model_it_started_from(name):
    # Tasks that agree, without noise: y = x' c. Every algorithm has to come nearer to c.
    rule, goal = rules(QUADRATIC)[name], draw(8, DIM)
    w = start()
    state = rule.init(w)
    for t in range(30):
        exact = tuple(
            Episode(e.tasks, tuple((x, x @ goal) for x, _ in e.batches)) for e in episodes(rule, t)
        )
        state = rule.step(state, exact)
    kept = [field["w"] for field in state if isinstance(field, dict) and field["w"].ndim == 3]
    assert sum(leaf.shape[1] for leaf in kept) == rule.memories
    assert_same(w, start())
    assert ((state.w["w"] - goal).norm(dim=1) < 0.8 * (w["w"] - goal).norm(dim=1)).all()


def v1(**given):
    return moml_v1(QUADRATIC, **SIZES | {"alpha": 1.0, "beta": 0.5, "eta": 0.1} | given)


def test_what_cannot_be_is_refused():
    no_first_batch = partial(local_moml, QUADRATIC, **FEW, alpha=1, beta=0.5, eta=1)
    for build, message in [
        (lambda: v1(alpha=-1), "alpha must be at least 0, got -1"),
        (lambda: v1(beta=0.0), r"beta must be in \(0, 1\], got 0.0"),
        (lambda: v1(beta=torch.tensor([0.5, 2.0])), r"beta must be in \(0, 1\], got tensor"),
        (lambda: v1(tasks=3, tasks_per_step=4), "tasks-per-step must be at most 3, the number of"),
        (lambda: v1(batch_size=0), "batch-size must be at least 1, got 0"),
        (lambda: v1(hessian="none"), "hessian must be one of exact, first-order, finite-diff"),
        (lambda: adaptive(eta=0.1), r"eta must be in \(0, 0.06804\], by Lemma 4, got 0.1"),
        (no_first_batch, "initial-batch-size must be at least 1, got 0"),
    ]:
        with entry(build), pytest.raises(ValueError, match=message):
            build()
