# %% [markdown]
# # Bandits between sites
#
# Twenty shops show each visitor one of three offers, and see only what that one earns. Most of what there is to
# learn is alike everywhere, but not all. Does it pay to learn together, when no shop may hand over its visitors?
#
# ## One exchange per batch: MOLARB
#
# With `molar-bandit` each shop plays by itself for a batch; then the shops exchange estimates, never rows, and
# play on. Batches double. Every simulated shop has a coefficient vector that differs from the others' in a few
# places.

# %%
import engram

run = engram.simulate(method="molar-bandit", dataset="sparse-linear", num_rounds=11, progress=False)
run.clients.round(1).head(4)

# %% [markdown]
# *Regret* is what the best offer would have earned more, in expectation. `turns` differ, since some shops have few
# visitors.
#
# The same policies can be played as a library. The cheap baseline, `ols_bandit`, is least squares in each shop by
# itself; MOLARB sees the same visitors.

# %%
import numpy

from engram.tables.bandits.environments import sparse_environments
from engram.tables.bandits.policies import play_tasks
from engram.tables.bandits.policies import molar_bandit, ols_bandit

turns, shops = 1024, 20
busy = numpy.linspace(0.05, 0.95, shops)  # how often a shop has a visitor


def regrets(policy, world, differing):
    drawn = sparse_environments(
        numpy.random.default_rng(world),
        "C",
        activation=busy,
        horizon=turns,
        dim=15,
        differing=differing,
        arms=3,
        sigma=0.5,
    )
    ties = numpy.random.default_rng([world, 1]).spawn(shops)
    return play_tasks(policy, drawn, ties)


worlds = range(3)
alone = numpy.mean([regrets(ols_bandit(), world, differing=2) for world in worlds], axis=0)
shared = numpy.mean(
    [regrets(molar_bandit(sigma=0.5), world, differing=2) for world in worlds], axis=0
)

# %% alt="Regret against turns in a quiet and in a busy shop, alone and with MOLARB"
import matplotlib.pyplot as plt

figure, panels = plt.subplots(1, 2, figsize=(8, 3), sharex=True, layout="constrained")
for axes, shop, words in zip(panels, (2, 18), ("a quiet shop", "a busy shop"), strict=True):
    axes.plot(alone[shop], label="alone, least squares")
    axes.plot(shared[shop], label="MOLARB")
    axes.set(title=words, xlabel="turn", ylabel="cumulative regret")
_ = panels[0].legend()
# %%
quiet, loud = slice(0, 7), slice(13, 20)
for words, part in (("quiet shops", quiet), ("busy shops", loud)):
    ratio = shared[part, -1].mean() / alone[part, -1].mean()
    print(f"{words}: MOLARB regrets {ratio:.2f} of what learning alone does")
assert shared[:, -1].mean() < alone[:, -1].mean()

# %% [markdown]
# Both kinds of shops gain. Does it still pay if shops have nothing in common? Now all fifteen coefficients differ:

# %%
apart = [
    [
        regrets(policy, world, differing=15)[:, -1].mean()
        for policy in (ols_bandit(), molar_bandit(sigma=0.5))
    ]
    for world in worlds
]
by_itself, with_others = numpy.mean(apart, axis=0)
print(f"nothing in common: alone {by_itself:.1f}, MOLARB {with_others:.1f}")
assert with_others > by_itself

# %% [markdown]
# Then each shop is better off alone. So know your shops, or play the baseline beside it.

# %% [markdown]
# ## A network for each user: Meta-Ban
#
# `meta-ban` is for rewards that a linear model does not fit, and users who agree on some arms. It asks all sites in
# every turn. Its cheap baseline is LinUCB for each user alone:

# %% language="bash"
# engram run meta-ban --set dataset=linear-groups --set num-rounds=100 --out runs/users

# %% [markdown]
# The report plays the baselines, too: the same users and arms, in the same turns.

# %% alt="Regret of Meta-Ban beside LinUCB for each user alone and random play"
from IPython.display import Image

Image("runs/users/regret.png")

# %% [markdown]
# One world decides nothing. Over twenty worlds and 5000 turns LinUCB for each user alone
# [regrets less](../results.md#meta-ban) than Meta-Ban here, where rewards are linear.
#
# [Bandits](../bandits.md) has all policies, logged data, and what sites learn of each other.
