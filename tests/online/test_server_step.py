"""The ensemble as a server's step: what it makes of gradients, keeps, and leaves to others."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from engram.core.method import Update
from engram.core.tree import add_scaled
from engram.methods.fedavg import FedAvg
from engram.methods.local import Local
from engram.methods.scaffold import Scaffold
from engram.online.baselines import metagrad
from engram.online.domains import ball
from engram.online.server_step import MOST_EXP_CONCAVE, has_exp_concave, in_epochs, universal_step
from engram.online.universal import universal_ensemble
from tests.methods.quadratics import built
from tests.online.support import adversaries
from tests.samples import entry
from tests.support import assert_same, draw

START = {"b": draw(1, 2), "a": draw(2, 3)}  # not in the order of their names
CURVES = {"a": torch.tensor([1.0, 0.3, 2.0]).double(), "b": torch.tensor([0.7, 1.5]).double()}


def gradient(model, goal):
    """Of the sum of curve (x - goal)^2 / 2."""
    return {name: CURVES[name] * (leaf - goal[name]) for name, leaf in model.items()}


def ensemble(radius, start=START):
    """Returns the server's slots at its start, and the merge of what one client sends."""
    server = universal_step(built(FedAvg(), start), radius).server

    def merge(slots, model):
        return server.merge.merge(slots, Update({"model": model}, 1.0))

    return server.start, merge


def descend(radius, goal, *, rounds, eta=0.1):
    """Plays rounds in which one client takes a step of length eta."""
    server, merge = ensemble(radius)
    for _ in range(rounds):
        model = server["model"]
        server = merge(server, add_scaled(model, -eta, gradient(model, goal)))
    return server


def flat(model):
    return torch.cat([leaf.flatten() for _, leaf in sorted(model.items())])


GOAL = {"a": START["a"] + torch.tensor([1.0, -2.0, 0.5]), "b": START["b"] + torch.tensor([0.3, 1])}


# --- Learners that know no bound on gradients ------------------------------------------------

BALL = ball(3, 1.5, np.array([0.3, -0.2, 0.1]))
BOUND = 2.0
NOISE = [adversaries(3, BOUND)["noise"](t, None) for t in range(64)]


def epochs():
    return in_epochs(
        lambda horizon, bound: metagrad(BALL, gradient_bound=bound, horizon=horizon), 64
    )


def played(learner, state, gradients):
    for g in gradients:
        state = learner.observe(state, g)
    return state


def test_epochs_double_the_bound():
    learner, g = epochs(), np.array([0.3, -0.4, 1.2])
    state, length = played(learner, learner.init(None), [np.zeros(3)] * 5), 1.3
    assert (state.bound, state.rounds, state.number) == (0.0, 0, 1)  # it knows no scale yet
    state = played(learner, state, [g])
    assert (state.bound, state.horizon, state.rounds) == (pytest.approx(2 * length), 64, 1)
    state = played(learner, state, [3 * g])
    assert (state.bound, state.horizon, state.rounds) == (pytest.approx(6 * length), 64, 1)
    last = played(learner, state, [g / 9] * 70)
    assert (last.horizon, last.rounds, last.number) == (64, 71, 2)


def test_epochs_go_on_from_where_they_had_come_to():
    learner, g = epochs(), np.array([0.0, 0.0, 1.0])
    state = played(learner, learner.init(None), [*NOISE, 9 * g])
    plain = metagrad(BALL, gradient_bound=18.0, horizon=64)
    begun = plain.init(learner.act(played(learner, learner.init(None), NOISE)))
    assert state.number == 2
    assert learner.act(state) == pytest.approx(plain.act(plain.observe(begun, 9 * g)), abs=1e-14)


# --- The step --------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e6))
def test_the_clients_step_size_does_not_matter(eta):
    one, other = (descend(2.0, GOAL, rounds=12, eta=e)["model"] for e in (0.1, eta))
    assert_same(one, other, atol=1e-7)


def test_it_is_the_librarys_learner():
    radius, rounds = 2.0, 30
    learner = in_epochs(
        lambda horizon, bound: universal_ensemble(
            ball(5, radius, flat(START).numpy()), horizon=horizon, gradient_bound=bound
        ),
        horizon=4096,
    )
    kept = learner.init(None)
    server, merge = ensemble(radius)
    for t in range(rounds):
        g = {name: (1 + t % 7) * draw(100 + t, *leaf.shape) for name, leaf in START.items()}
        server = merge(server, add_scaled(server["model"], -1, g))
        kept = learner.observe(kept, flat(g).numpy())
        np.testing.assert_allclose(flat(server["model"]), learner.act(kept), rtol=0, atol=1e-9)
    assert kept.number > 1  # longer and longer gradients: it has started over


# --- What it keeps, and what it leaves to others ---------------------------------------------


def test_goes_on_from_a_file_bit_for_bit(tmp_path):
    server, merge = descend(2.0, GOAL, rounds=7), ensemble(2.0)[1]
    save_file(server["universal"], tmp_path / "state")
    loaded = load_file(tmp_path / "state")
    mixed = {name: loaded[name] for name in sorted(loaded, key=lambda name: name[::-1])}
    sent = add_scaled(server["model"], -0.1, gradient(server["model"], GOAL))
    one, other = (merge(s, sent) for s in (server, server | {"universal": mixed}))
    for slot in ("model", "universal"):
        assert one[slot].keys() == other[slot].keys()
        assert all(torch.equal(one[slot][name], other[slot][name]) for name in one[slot])


def test_float32_models_keep_their_type_and_the_state_is_float64():
    server, merge = ensemble(2.0, {name: leaf.float() for name, leaf in START.items()})
    server = merge(server, {name: leaf + 1 for name, leaf in server["model"].items()})
    assert {leaf.dtype for leaf in server["model"].values()} == {torch.float32}
    state = dict(server["universal"])
    structure = state.pop("(structure)")  # text
    assert structure.dtype == torch.uint8
    assert {leaf.dtype for leaf in state.values()} == {torch.float64, torch.int64}


def test_what_is_not_finite_is_the_callers_to_judge():
    server, merge = ensemble(2.0)
    after = merge(server, {name: torch.full_like(leaf, torch.nan) for name, leaf in START.items()})
    assert all(leaf.isnan().all() for leaf in after["model"].values())
    assert_same(after["universal"], server["universal"])


def test_running_statistics_are_averaged():
    method = universal_step(built(FedAvg(), START), 2.0, frozenset({"b"}))
    sent = {"a": START["a"] + 1, "b": START["b"] + 5}
    found = method.server.merge.merge(method.server.start, Update({"model": sent}, 1.0))["model"]
    assert torch.equal(found["b"], sent["b"])
    assert 0 < float((found["a"] - START["a"]).norm()) < 2.0


def test_the_server_s_other_slots_go_on():
    plain = built(Scaffold(), START)
    stepped, change = universal_step(plain, 2.0), Update({"model": GOAL, "change": START}, 1.0)
    found = stepped.server.merge.merge(stepped.server.start, change)
    expected = plain.server.merge.merge(plain.server.start, change)
    assert_same(found["control"], expected["control"])
    assert found.keys() == expected.keys() | {"universal"} == stepped.server.start.keys()
    assert stepped.server.merge.by == plain.server.merge.by
    assert stepped.kinds["universal"] == "statistic"
    assert stepped.server.send(stepped.server.start, [0])[0].keys() == {"model", "control"}


def test_large_models_have_no_learners_for_exp_concave_losses():
    for dim in (MOST_EXP_CONCAVE, MOST_EXP_CONCAVE + 1):
        state = ensemble(2.0, torch.zeros(dim))[0]["universal"]
        assert has_exp_concave(dim) == (dim == 200)
        assert any(".newtons." in name for name in state) == has_exp_concave(dim)


def test_refuses_a_ball_that_is_none():
    message = "server-radius must be finite and positive, got"
    for radius in [0.0, -1.0, np.inf, np.nan]:
        with entry(radius), pytest.raises(ValueError, match=message):
            ensemble(radius)


def test_a_server_that_merges_no_model_has_no_such_step():
    with pytest.raises(ValueError, match="server-step must be replace for a method whose server"):
        universal_step(built(Local(), START), 2.0)
