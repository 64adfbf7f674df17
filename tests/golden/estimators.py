"""What the library's estimators, learners and policies find, without files or messages."""

import numpy as np

from engram.bandits.policy import policy_server
from engram.online import loss_streams
from engram.online.baselines import metagrad, usc
from engram.online.descent import ogd, online_newton_step, optimistic_newton, optimistic_ogd
from engram.online.domains import ball, box, simplex
from engram.online.experts import adapt_ml_prod, hedge, msmwc
from engram.online.play import play_stream
from engram.online.state_arrays import to_arrays
from engram.online.universal import universal_ensemble
from engram.tables.bandits.policies import play_tasks
from engram.tables.baselines import (
    DebiasedRegressor,
    IndividualRegressor,
    LassoRegressor,
    PooledRegressor,
)
from engram.tables.regressor import MolarClassifier, MolarRegressor
from tests.bandits.test_contract import BANDITS, DIM, ENVIRONMENT
from tests.online.streams import ON_A_BALL, rows
from tests.tables.bandits import POLICIES, generators, small_environments
from tests.tables.countries import classes, linear

HORIZON, SIZE = 60, 3
BALL = {"gradient_bound": 2.0, "horizon": HORIZON}


def multitask(model, data):
    """Fits six countries' rows, and predicts them."""
    frame, y = data
    names = ["income", "age", "hours"]
    fitted = model.fit(frame[names], y, frame["country"])
    found = {
        "coef": fitted.coef_,
        "intercept": fitted.intercept_,
        "shared": fitted.shared_coef_,
        "predicted": fitted.predict(frame[names], frame["country"]) == "yes"
        if isinstance(model, MolarClassifier)
        else fitted.predict(frame[names], frame["country"]),
    }
    if isinstance(model, MolarClassifier | MolarRegressor):
        low, high = fitted.confidence_intervals()
        found |= {"low": low, "high": high}
    return found


MULTITASK = {
    **{
        f"molar, {option}, c = {c}": lambda option=option, c=c: multitask(
            MolarRegressor(option=option, c=c), linear(rows=40)
        )
        for option in ("hard", "soft")
        for c in (0.5, 1.0)
    },
    "molar, standardized, no intercept": lambda: multitask(
        MolarRegressor(standardize=True, fit_intercept=False), linear(rows=40)
    ),
    "molar, sigma": lambda: multitask(MolarRegressor(sigma=0.4), linear(rows=40)),
    "molar, classes": lambda: multitask(MolarClassifier(), classes()),
    "molar, classes, soft": lambda: multitask(MolarClassifier(option="soft", c=0.7), classes()),
    "molar, counts": lambda: multitask(MolarRegressor(family="poisson"), counted()),
    "individual": lambda: multitask(IndividualRegressor(), linear(rows=40)),
    "pooled": lambda: multitask(PooledRegressor(), linear(rows=40)),
    "lasso": lambda: multitask(LassoRegressor(), linear(rows=40)),
    **{
        f"debiased, {center}": lambda center=center: multitask(
            DebiasedRegressor(center=center, sigma=0.4, fit_intercept=center != "transfer"),
            linear(rows=40),
        )
        for center in ("median", "trimmed-mean", "transfer")
    },
}


def counted():
    """The countries' rows, with counts."""
    frame, y = linear(rows=40)
    return frame, np.random.default_rng(2).poisson(np.exp(np.clip(y, -3, 2)))


def tasks(name, model):
    """Plays a multitask policy in five small worlds."""
    return {
        "regret": play_tasks(POLICIES[name](), small_environments(model), generators(5), first=3)
    }


def stream(name):
    """Learns 300 rows one after the other."""
    model, target, options = ON_A_BALL[name]
    x, _ = rows(300)
    y = target(*rows(300))
    fitted = type(model)(**model.get_params())
    for k in range(0, 300, 30):
        fitted.partial_fit(x[k : k + 30], y[k : k + 30], **options)
    score = fitted.predict_proba if hasattr(fitted, "predict_proba") else fitted.predict
    if model.get_params()["loss"] == "hinge":
        score = fitted.decision_function
    return {"state": numbers(fitted.model_), "predicted": score(x)}


LEARNERS = {
    "ogd": lambda: ogd(ball(SIZE, 1.0), gradient_bound=2.0),
    "ogd, box": lambda: ogd(box(np.full(SIZE, -0.3), np.full(SIZE, 0.4)), gradient_bound=2.0),
    "ogd, simplex": lambda: ogd(simplex(SIZE), gradient_bound=2.0),
    "optimistic ogd": lambda: optimistic_ogd(ball(SIZE, 1.0), gradient_bound=2.0, smoothness=1.0),
    "newton": lambda: online_newton_step(ball(SIZE, 1.0), gradient_bound=2.0, exp_concavity=0.5),
    "optimistic newton": lambda: optimistic_newton(
        ball(SIZE, 1.0), gradient_bound=2.0, smoothness=1.0, exp_concavity=0.5
    ),
    "universal": lambda: universal_ensemble(ball(SIZE, 1.0), **BALL),
    "universal, many gradients": lambda: universal_ensemble(
        ball(SIZE, 1.0), **BALL, feedback="multi-gradient"
    ),
    "universal, theory": lambda: universal_ensemble(
        ball(SIZE, 1.0), **BALL, smoothness=1.0, constants="theory"
    ),
    "universal, convex": lambda: universal_ensemble(ball(SIZE, 1.0), **BALL, exp_concave=False),
    "usc": lambda: usc(ball(SIZE, 1.0), **BALL),
    "metagrad": lambda: metagrad(ball(SIZE, 1.0), **BALL),
}
EXPERTS = {
    "hedge": lambda: hedge(5, horizon=HORIZON),
    "prod": lambda: adapt_ml_prod(5),
    "msmwc": lambda: msmwc(5, 0.03),
    "msmwc, one step each": lambda: msmwc(5, np.linspace(0.01, 0.03, 5), optimistic=False),
}
STREAMS = ("strongly_convex", "absolute", "logistic", "squared", "linear")


def learned(make):
    """Plays a learner in streams of each curvature; where it asked for gradients."""
    found = {}
    for number, kind in enumerate(STREAMS):
        rng = np.random.default_rng(number)
        environment = getattr(loss_streams, kind)(rng, HORIZON, dim=SIZE)
        found[kind] = play_stream(make(), environment).points
    return found


def weighed(make):
    """Tells experts' losses; the weights in each round."""
    learner, rng, weights = make(), np.random.default_rng(4), []
    state = learner.init(None)
    for _ in range(HORIZON):
        weights.append(learner.act(state))
        state = learner.observe(state, rng.random(5) ** [1, 2, 1, 3, 1])
    return {"weights": np.stack(weights)}


def chosen(name):
    """Serves users of two groups; the arms, and the state."""
    served = policy_server(BANDITS[name](), DIM)
    state, arms = served.init(7), []
    for t in range(HORIZON):
        user, x, _, rewards = ENVIRONMENT.round(t)
        arm, state = served.choose(state, f"user {user}", x)
        state = served.update(state, f"user {user}", arm, float(rewards[arm]))
        arms.append(arm)
    return {"arms": arms, "state": numbers(state)}


def numbers(state):
    """Returns a state's arrays as one."""
    arrays = [array.ravel() for array in to_arrays(state).values() if array.dtype.kind == "f"]
    return np.concatenate([np.empty(0), *arrays])


CASES = {
    **MULTITASK,
    **{
        f"tasks' bandit, {name}, Model-{model}": lambda name=name, model=model: tasks(name, model)
        for name in POLICIES
        for model in ("C", "P")
    },
    **{f"stream, {name}": lambda name=name: stream(name) for name in ON_A_BALL},
    **{f"learner, {name}": lambda make=make: learned(make) for name, make in LEARNERS.items()},
    **{f"experts, {name}": lambda make=make: weighed(make) for name, make in EXPERTS.items()},
    **{f"policy, {name}": lambda name=name: chosen(name) for name in BANDITS},
}
