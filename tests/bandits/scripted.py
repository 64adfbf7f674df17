"""A small policy that depends on all that a policy may depend on, for tests of what plays it."""

from engram.bandits.policy import Policy


def noisy(dim, noise=0.1):
    """Follows each user's sum of rewarded arms, from a start that is drawn, and with noise."""

    def choose(state, user, arms, rng):
        theta = state.get(user, (user + 1) * state["start"])
        scores = arms @ theta + noise * rng.standard_normal(len(arms))
        return int(scores.argmax()), {**state, "asked": state["asked"] + 1}

    def update(state, user, x, reward, rng):
        theta = state.get(user, (user + 1) * state["start"])
        moved = theta + (reward - 0.5) * x + 0.01 * rng.standard_normal(dim)
        return {**state, user: moved}

    return Policy(
        init=lambda rng: {"start": rng.standard_normal(dim), "asked": 0},
        choose=choose,
        update=update,
    )
