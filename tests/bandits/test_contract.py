"""What every policy must do, whatever it learns."""

from functools import cache

import numpy as np
import pytest

from engram.bandits.club import club
from engram.bandits.cofiba import cofiba
from engram.bandits.linucb import epsilon_greedy, linucb, random_play
from engram.bandits.locb import locb
from engram.bandits.meta_ban import meta_ban
from engram.bandits.molar import molar
from engram.bandits.neural import neural_bandit
from engram.bandits.policy import diverged, policy_server, single_run
from engram.bandits.sclub import sclub
from engram.online.state_arrays import from_arrays, to_arrays
from tests.bandits.support import Groups
from tests.samples import entry, sampled

DIM, LEARNED = 4, 60
LINEAR = {"alpha": 0.3, "lam": 0.1}
PAPER = {"exploration": "paper", "theta": "draw", "meta_gradient": "eq6", "user_start": "meta"}
PAPER |= {"group_cap": None}

BANDITS = {  # by name, how to make it
    "random": random_play,
    "epsilon-greedy": lambda: epsilon_greedy(DIM, epsilon=0.2, lam=0.1),
    "linucb, one": lambda: linucb(DIM, **LINEAR, shared=True),
    "linucb, ind": lambda: linucb(DIM, **LINEAR),
    "club": lambda: club(DIM, **LINEAR, alpha2=0.5),
    "sclub": lambda: sclub(DIM, **LINEAR, alpha2=0.5),
    "cofiba": lambda: cofiba(DIM, **LINEAR, alpha2=0.2, items=4),
    "locb": lambda: locb(DIM, **LINEAR, alpha2=0.5, seeds=3),
    "molar": lambda: molar(DIM),
    "neural ucb, one": lambda: single_run(neural_bandit(DIM, hidden=(8,)).batched),
    "neural ucb, ind": lambda: single_run(neural_bandit(DIM, hidden=(8,), shared=False).batched),
    "neural thompson": lambda: single_run(neural_bandit(DIM, hidden=(8,), thompson=True).batched),
    "meta-ban": lambda: single_run(meta_ban(DIM, hidden=(8,)).batched),
    "meta-ban, paper": lambda: single_run(meta_ban(DIM, hidden=(8,), **PAPER).batched),
    "molar, all rows": lambda: molar(DIM, history="all", c=0.3, c_rows=0.0, first=8),
}
DRAWS = {"random", "epsilon-greedy"}  # numbers that matter, though there are no ties
ENVIRONMENT = Groups(groups=2, users=4, dim=DIM, noise=0.05, seed=2)

every = pytest.mark.parametrize("name", BANDITS)


def made(name):
    return policy_server(BANDITS[name](), DIM)


def played(served, state, rounds=LEARNED, start=0):
    """Plays rounds; the choices, and the state."""
    chosen = []
    for t in range(start, start + rounds):
        user, x, _, rewards = ENVIRONMENT.round(t)
        arm, state = served.choose(state, f"user {user}", x)
        state = served.update(state, f"user {user}", arm, float(rewards[arm]))
        chosen.append(arm)
    return chosen, state


@cache
def beginning(name):
    """Choices of the first rounds, and the state after them, which no test changes."""
    return played(made(name), made(name).init(3))


def learned(name):
    return made(name), beginning(name)[1]


def same(one, other):
    a, b = to_arrays(one), to_arrays(other)
    assert list(a) == list(b)
    for name, value in a.items():
        assert (value.dtype, value.shape) == (b[name].dtype, b[name].shape), name
        assert value.tobytes() == b[name].tobytes(), name


@every
def test_every_policy_meets_the_contract(name, tmp_path):
    check_the_same_seed_makes_the_same_choices(name)
    check_a_state_is_never_changed(name)
    check_what_it_is_given_is_left_alone(name)
    check_goes_on_from_a_file_bit_for_bit(name, tmp_path)
    check_serves_who_was_never_seen_and_any_number_of_arms(name)
    check_learns_of_an_arm_that_was_offered_but_not_chosen(name)
    check_the_same_arm_twice_is_a_fair_tie(name)
    check_a_refusal_changes_nothing(name)


def check_the_same_seed_makes_the_same_choices(name):
    one, other = beginning(name), played(made(name), made(name).init(3))
    assert one[0] == other[0]
    same(one[1], other[1])
    if name in DRAWS:
        assert played(made(name), made(name).init(8))[0] != one[0]


def test_users_have_names_of_numpy_s_own_types():
    served, x = made("random"), ENVIRONMENT.round(0)[1]
    state = served.init(0)
    for name in (np.str_("ann"), np.int64(3), "ann", 3):
        arm, state = served.choose(state, name, x)
        state = served.update(state, name, arm, 1.0)
    assert state.users == {"ann": 0, 3: 1}
    assert from_arrays(served.init(0), to_arrays(state)).users == state.users


@pytest.mark.parametrize(
    "runs",
    [neural_bandit(DIM).batched, neural_bandit(DIM, shared=False).batched, meta_ban(DIM).batched],
    ids=["neural ucb, one", "neural ucb, ind", "meta-ban"],
)
def test_one_that_diverges_says_so(runs):
    served, rng = policy_server(runs, DIM), np.random.default_rng(0)

    def serve(state):
        for _ in range(300):
            arms = 4 * rng.normal(size=(10, DIM))
            arm, state = served.choose(state, "ann", arms)
            state = served.update(state, "ann", arm, float(rng.random() < 0.5))

    with pytest.raises(ValueError, match="must be finite, and has diverged: scale arms to a len"):
        serve(served.init(0))
    with pytest.raises(ValueError, match="arms to a length of 1, got up to 2"):
        served.choose(served.init(0), "ann", np.full((2, DIM), 1e150))
    unit = np.eye(2, DIM)  # whose length is not to blame
    assert diverged(unit, "lower eta") == "must be finite, and has diverged: lower eta"


def test_several_runs_are_no_policy():
    message = "runs must be as many as are played, 1, got 2"
    for made_of in [meta_ban, neural_bandit]:
        with entry(made_of), pytest.raises(ValueError, match=message):
            policy_server(made_of(DIM, runs=2).batched, DIM).init(0)


CLUSTERS = (club, sclub, cofiba, locb)
NETWORKS = (neural_bandit, meta_ban)
REFUSED = [  # by whom: an argument, its value, and what it must be
    ((linucb, epsilon_greedy, *CLUSTERS, molar, *NETWORKS), "dim", 0, "at least 1, got 0"),
    ((linucb, *CLUSTERS, *NETWORKS), "alpha", -1.0, "finite and at least 0"),
    ((linucb,), "alpha", np.nan, "finite"),
    ((linucb, epsilon_greedy, *CLUSTERS), "lam", 0.0, "finite and positive, got 0.0"),
    (CLUSTERS, "alpha2", -0.5, "finite and at least 0, got -0.5"),
    ((epsilon_greedy,), "epsilon", 1.5, r"in \[0, 1\], got 1.5"),
    ((sclub,), "alpha_p", -0.5, "finite and at least 0, got -0.5"),
    ((cofiba,), "items", 0, "at least 1, got 0"),
    ((locb,), "seeds", 0, "at least 1, got 0"),
    ((locb,), "gamma", 0.0, "positive, got 0.0"),
    ((molar,), "first", 0, "at least 1"),
    ((molar,), "c", -1.0, "at least 0"),
    ((molar,), "c_rows", -1.0, "at least 0"),
    (NETWORKS, "runs", 0, "at least 1, got 0"),
    (NETWORKS, "hidden", (), "one or more widths"),
    (NETWORKS, "hidden", (4, 0), "one or more widths"),
    (NETWORKS, "batch", 0, "at least 1"),
    (NETWORKS, "buffer", 0, "at least 1"),
    ((meta_ban,), "alpha", np.ones(3), r"\(\) or \(1,\), got \(3,\)"),
    ((neural_bandit,), "steps", 0, "at least 1"),
    ((neural_bandit,), "lam", 0.0, "above 0"),
    ((neural_bandit,), "eta", 0.0, "above 0"),
    ((meta_ban,), "nu", 1.0, "above 1, got 1.0"),
    ((meta_ban,), "nu", np.nan, "above 1"),
    ((meta_ban,), "gamma", 1.0, r"in \[0, 1\), got 1.0"),
    ((meta_ban,), "gamma", -0.1, "in"),
    ((meta_ban,), "lam", np.inf, "finite and at least 0"),
    ((meta_ban,), "eta_user", 0.0, "above 0"),
    ((meta_ban,), "eta_meta", 0.0, "above 0"),
    ((meta_ban,), "eta_meta", np.nan, "finite"),
    ((meta_ban,), "own_weight", 0.0, "finite and above 0"),
    ((meta_ban,), "own_weight", np.inf, "finite and above 0"),
    ((meta_ban,), "group_cap", 0, "at least 1, got 0"),
    ((meta_ban,), "adapt_every", 0, "at least 1"),
    ((meta_ban,), "user_steps", 0, "at least 1"),
    ((meta_ban,), "meta_steps", 0, "at least 1"),
    ((meta_ban,), "exploration", "ucb", "one of .'gradient-norm', 'paper'.*, got 'ucb'"),
    ((meta_ban,), "user_start", "last", "one of .'own', 'meta'.*, got 'last'"),
]


def test_arguments_out_of_range_are_refused():
    usual = {linucb: LINEAR, epsilon_greedy: {"epsilon": 0.2, "lam": 0.1}}
    usual |= dict.fromkeys(CLUSTERS, LINEAR)
    for makers, name, value, expected in REFUSED:
        argument = "a choice" if isinstance(value, str) else f"{name}('s shape)?"
        for make in makers:
            given = {"dim": DIM} | usual.get(make, {}) | {name: value}
            message = f"^{argument} must be {expected}"
            with entry(make, name, value), pytest.raises(ValueError, match=message):
                make(**given)


def test_seeds_are_whole_numbers():
    for seed in [-1, 1.5, True, None]:
        message = "seed must be a whole number, at least 0"
        with entry(seed), pytest.raises(ValueError, match=message):
            made("random").init(seed)
    assert type(made("random").init(np.int64(3)).seed) is int


def check_a_state_is_never_changed(name):
    served, state = learned(name)
    before = from_arrays(served.init(0), to_arrays(state))
    first, _ = played(served, state, 20, start=LEARNED)
    same(state, before)
    assert played(served, state, 20, start=LEARNED)[0] == first


def check_what_it_is_given_is_left_alone(name):
    served, state = made(name), made(name).init(1)
    for t in range(12):
        user, x, _, rewards = ENVIRONMENT.round(t)
        x.setflags(write=False)
        arm, state = served.choose(state, user, x)
        state = served.update(state, user, arm, float(rewards[arm]))
    policy, rng = BANDITS[name](), np.random.default_rng(0)
    _, x, _, _ = ENVIRONMENT.round(99)
    before = x.copy()
    learned = policy.init(rng)
    for arm in range(len(x)):
        _, learned = policy.choose(learned, arm % 3, x, rng)
        learned = policy.update(learned, arm % 3, x[arm], 0.5, rng)
    assert np.array_equal(x, before)


def check_goes_on_from_a_file_bit_for_bit(name, folder):
    served, state = learned(name)
    _, state = served.choose(state, "waiting", ENVIRONMENT.round(0)[1])
    np.savez(folder / "state.npz", **to_arrays(state))
    with np.load(folder / "state.npz", allow_pickle=False) as saved:
        restored = from_arrays(made(name).init(0), saved)
    same(state, restored)
    one = played(served, state, 40, start=LEARNED)
    other = played(made(name), restored, 40, start=LEARNED)
    assert one[0] == other[0]
    same(one[1], other[1])


def check_serves_who_was_never_seen_and_any_number_of_arms(name):
    served, state = learned(name)
    x = ENVIRONMENT.round(500)[1]
    arm, state = served.choose(state, "newcomer", x)
    assert 0 <= arm < len(x)
    assert type(arm) is int
    state = served.update(state, "newcomer", arm, 1.0)
    assert served.choose(state, "newcomer", x)[0] in range(len(x))
    served = made(name)
    state = served.init(5)
    for t in range(20):
        user, x, _, _ = ENVIRONMENT.round(t)
        few = x[: 1 + t % 3]
        arm, state = served.choose(state, user, few)
        assert arm in range(len(few))
        state = served.update(state, user, arm, 0.5)
    assert served.choose(state, 0, x[:1])[0] == 0
    # A policy may meet user 40 first, and learn from users for whom it never chose.
    policy, rng = BANDITS[name](), np.random.default_rng(0)
    state, x = policy.init(rng), ENVIRONMENT.round(1)[1]
    for user in (40, 2, 40, 5, 2):
        state = policy.update(state, user, x[user % len(x)], 0.5, rng)
        arm, state = policy.choose(state, user, x, rng)
        assert arm in range(len(x))


def check_learns_of_an_arm_that_was_offered_but_not_chosen(name):
    served, state = learned(name)
    user, x, _, _ = ENVIRONMENT.round(LEARNED)
    arm, state = served.choose(state, user, x)
    other = (arm + 1) % len(x)
    one, two = (served.update(state, user, a, 1.0) for a in (arm, other))
    assert one.updated == two.updated == state.updated + 1
    if name != "random":
        with pytest.raises(AssertionError):  # it does make a difference which
            same(one, two)


def check_the_same_arm_twice_is_a_fair_tie(name):
    served, state = learned(name)
    x = ENVIRONMENT.round(700)[1]
    # The best arm for this state, if it has one, stands at several places.
    arm, _ = served.choose(state, "user 1", x)
    twice = np.vstack([x[arm]] * 10)
    counts = np.bincount(
        [served.choose(state._replace(seed=s), "user 1", twice)[0] for s in range(300)],
        minlength=10,
    )
    assert (abs(counts - 30) < 21).all()  # four standard deviations


def check_a_refusal_changes_nothing(name):
    served = made(name)
    _, state = played(served, served.init(8), 20)
    user, x, _, _ = ENVIRONMENT.round(20)
    _, state = served.choose(state, user, x)
    before = from_arrays(served.init(0), to_arrays(state))
    for bad in (
        lambda: served.choose(state, user, x[:, 1:]),
        lambda: served.choose(state, user, np.where(x == x.max(), np.nan, x)),
        lambda: served.update(state, user, len(x), 0.5),
        lambda: served.update(state, user, 0, 1.1),
    ):
        with pytest.raises(ValueError, match="must be"):
            bad()
        same(state, before)
    state = from_arrays(made(name).init(0), to_arrays(policy_server(BANDITS[name](), DIM).init(0)))
    other = policy_server(BANDITS[name](), DIM + 1)
    message = f"the state's arms' dimension must be {DIM + 1}, got {DIM}"
    with pytest.raises(ValueError, match=message):
        other.choose(state, "ann", np.ones((2, DIM + 1)))


@pytest.mark.parametrize("name", sampled(BANDITS, [*BANDITS][::2]))
def test_learns_something(name):
    (served, state), rounds = learned(name), 300
    regret, at_random = 0.0, 0.0
    for t in range(LEARNED, rounds):
        user, x, means, rewards = ENVIRONMENT.round(t)
        arm, state = served.choose(state, user, x)
        state = served.update(state, user, arm, float(rewards[arm]))
        if t >= rounds // 2:
            regret += means.max() - means[arm]
            at_random += means.max() - means.mean()
    share = regret / at_random
    assert abs(share - 1) < 0.15 if name == "random" else share < 0.6
