"""Sites of Meta-Ban: users at several do what they do at one."""

from functools import partial

import numpy as np
import pytest
import torch

from engram.bandits.meta_ban import meta_ban
from engram.bandits.meta_learner import MetaState
from engram.bandits.policy import CHOOSE, INIT, UPDATE, generator
from engram.bandits.replay import kept_rows
from engram.bandits.site import recalled, remembered
from engram.bandits.training import descended
from tests.bandits.neural_support import generators, played, rounds

USERS, DIM = 10, 4


def built(**settings):
    small = {"hidden": (5, 4), "batch": 4, "buffer": 6, "gamma": 0.2, "meta_steps": 2}
    return meta_ban(DIM, dtype=torch.float64, **small | settings)


def answers_of(policy, sites, owner):
    """What a server may ask: predictions of all users, gradients of rows drawn, counts of rows."""

    def predictions(x):
        parts = [policy.site.predictions(site, x) for site in sites]
        return torch.stack([parts[owner[user]][:, user] for user in range(USERS)], dim=1)

    def gradients(drawn, weights):
        found = []
        for place, site in enumerate(sites):
            here = np.isin(drawn.users, np.flatnonzero(owner == place))
            # A site knows no other's rows: the others' shares are 0 here.
            mine = drawn._replace(
                users=np.where(here, drawn.users, 0),
                slots=np.where(here, drawn.slots, 0),
                shares=np.where(here, drawn.shares, 0.0),
            )
            found.append(policy.site.gradients(site, weights, mine))
        return tuple(torch.stack(layer).sum(dim=0) for layer in zip(*found, strict=True))

    def counts():
        each = [kept_rows(site.rows)[:, :USERS] for site in sites]
        return np.stack([each[owner[user]][:, user] for user in range(USERS)], axis=1)

    def descent(weights, drawn, eta, lam):
        def at_step(step, at):
            return gradients(drawn.step(step), at)

        return descended(weights, at_step, drawn.users.shape[1], eta, lam)

    return predictions, descent, counts


@pytest.mark.parametrize("theta", ["last", "draw"])
def test_users_at_several_sites_do_what_they_do_at_one(theta):
    policy, environment, seed = built(theta=theta), rounds(3, 120, users=USERS), 4
    owner = np.array([0, 1, 2, 0, 1, 2, 0, 0, 2, 1])
    whole = policy.init(generators([seed], 0, INIT))
    start = policy.start(generators([seed], 0, INIT))
    meta = MetaState(start, start, 0)
    everyone = np.array([USERS - 1])
    sites = [policy.site.welcome(policy.site.init(start), everyone) for _ in range(3)]
    known, slots = 0, []
    for t, asked in enumerate(environment):
        users, x = np.array([asked.user]), torch.from_numpy(asked.arms)[None].mT
        known = max(known, asked.user + 1)
        predictions, descent, counts = answers_of(policy, sites, owner)
        said = predictions(x)
        said[:, known:] = torch.inf
        groups, rngs = policy.learner.groups(said, users), [generator(seed, t, CHOOSE)]
        adapted = partial(
            policy.learner.adapted, users=users, counts=counts(), descent=descent, rngs=rngs
        )
        chosen, meta = policy.learner.choose(meta, groups, x, adapted, rngs)
        expected, whole = policy.choose(
            whole, users, asked.arms[None], [generator(seed, t, CHOOSE)]
        )
        assert chosen.tolist() == expected.tolist()
        played_row, paid = asked.arms[chosen], asked.rewards[chosen]
        whole = policy.update(whole, users, played_row, paid, [generator(seed, t, UPDATE)])
        place, rngs = owner[asked.user], [generator(seed, t, UPDATE)]
        sites[place] = policy.site.learn(sites[place], users, played_row, paid, meta.theta, rngs)
        slots.append(place)
    assert set(slots) == {0, 1, 2}
    for a, b in zip(meta.theta, whole.meta.theta, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("theta", ["last", "draw"])
def test_a_site_goes_on_with_what_it_remembers(theta):
    policy, environment = built(theta=theta), rounds(5, 60, users=USERS)
    state = policy.init(generators([0], 0, INIT))
    _, state = played(policy.batched, [environment], [0], state)
    site, users = state.site, [7, 2, 9]
    memory = remembered(site, users)
    fresh = policy.site.welcome(policy.site.init(site.start), np.array([9]))
    again = recalled(fresh, users, memory)
    x = torch.from_numpy(environment[0].arms)[None].mT
    found, known, new = (policy.site.predictions(each, x) for each in (again, site, fresh))
    assert torch.equal(found[:, users], known[:, users])
    assert torch.equal(found[:, [0]], new[:, [0]])
    assert again.rows.seen[0, users].tolist() == site.rows.seen[0, users].tolist()
    row = np.array([2]), environment[0].arms[:1], np.array([0.5]), state.meta.theta
    one, other = (
        policy.site.learn(kept, *row, [generator(0, 1, UPDATE)]) for kept in (site, again)
    )
    for a, b in zip((*one.lasts, *one.thetas), (*other.lasts, *other.thetas), strict=True):
        assert torch.equal(a.read()[:, 2], b.read()[:, 2])
    more = remembered(one, users)
    assert all(torch.equal(more[name], part) for name, part in remembered(other, users).items())
    before = site.rows.x.read().clone()
    memory["x"].zero_()  # what is remembered is a copy
    assert torch.equal(site.rows.x.read(), before)


def test_memories_that_do_not_fit_are_refused():
    state = built().init(generators([0], 0, INIT)).site
    memory = remembered(state, [0, 1])
    with pytest.raises(ValueError, match="the memory's parts must be"):
        recalled(state, [0, 1], {name: part for name, part in memory.items() if name != "seen"})
    with pytest.raises(ValueError, match="the memory's shapes must be"):
        recalled(state, [0], memory)
    other = built(hidden=(6,)).init(generators([0], 0, INIT)).site
    with pytest.raises(ValueError, match="must be"):
        recalled(other, [0, 1], memory)
    long = built(buffer=40)
    filled = long.init(generators([0], 0, INIT))
    for t in range(30):
        x, rngs = np.ones((1, DIM)), [generator(0, t, UPDATE)]
        filled = long.update(filled, np.array([0]), x, np.array([0.5]), rngs)
    with pytest.raises(ValueError, match="a user's rows must be at most 6"):
        recalled(state, [0], remembered(filled.site, [0]))
