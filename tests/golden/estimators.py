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
from tests.bandits.test_contract import BANDITS, DIM, played
from tests.online.streams import ON_A_BALL, rows
from tests.tables.bandits import POLICIES, generators, small_environments
from tests.tables.countries import classes, linear

HORIZON, SIZE = 60, 3
UNIT, BOUND = ball(SIZE, 1.0), {"gradient_bound": 2.0}
BALL = BOUND | {"horizon": HORIZON}


MULTITASK = {
    **{
        f"molar, {option}, c = {c}": MolarRegressor(option=option, c=c)
        for option in ("hard", "soft")
        for c in (0.5, 1.0)
    },
    "molar, standardized, no intercept": MolarRegressor(standardize=True, fit_intercept=False),
    "molar, sigma": MolarRegressor(sigma=0.4),
    "molar, classes": MolarClassifier(),
    "molar, classes, soft": MolarClassifier(option="soft", c=0.7),
    "molar, counts": MolarRegressor(family="poisson"),
    "individual": IndividualRegressor(),
    "pooled": PooledRegressor(),
    "lasso": LassoRegressor(),
    **{
        f"debiased, {center}": DebiasedRegressor(
            center=center, sigma=0.4, fit_intercept=center != "transfer"
        )
        for center in ("median", "trimmed-mean", "transfer")
    },
}


def multitask(name):
    """Fits six countries' rows, and predicts them."""
    model = MULTITASK[name]
    frame, y = classes() if "classes" in name else linear(rows=40)
    if "counts" in name:
        y = np.random.default_rng(2).poisson(np.exp(np.clip(y, -3, 2)))
    x, country = frame[["income", "age", "hours"]], frame["country"]
    fitted = model.fit(x, y, country)
    predicted = fitted.predict(x, country)
    found = {
        "coef": fitted.coef_,
        "intercept": fitted.intercept_,
        "shared": fitted.shared_coef_,
        "predicted": predicted == "yes" if "classes" in name else predicted,
    }
    if isinstance(model, MolarClassifier | MolarRegressor):
        found["low"], found["high"] = fitted.confidence_intervals()
    return found


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
    "ogd": lambda: ogd(UNIT, **BOUND),
    "ogd, box": lambda: ogd(box(np.full(SIZE, -0.3), np.full(SIZE, 0.4)), **BOUND),
    "ogd, simplex": lambda: ogd(simplex(SIZE), **BOUND),
    "optimistic ogd": lambda: optimistic_ogd(UNIT, **BOUND, smoothness=1.0),
    "newton": lambda: online_newton_step(UNIT, **BOUND, exp_concavity=0.5),
    "optimistic newton": lambda: optimistic_newton(
        UNIT, **BOUND, smoothness=1.0, exp_concavity=0.5
    ),
    "universal": lambda: universal_ensemble(UNIT, **BALL),
    "universal, many gradients": lambda: universal_ensemble(
        UNIT, **BALL, feedback="multi-gradient"
    ),
    "universal, theory": lambda: universal_ensemble(
        UNIT, **BALL, smoothness=1.0, constants="theory"
    ),
    "universal, convex": lambda: universal_ensemble(UNIT, **BALL, exp_concave=False),
    "usc": lambda: usc(UNIT, **BALL),
    "metagrad": lambda: metagrad(UNIT, **BALL),
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
    arms, state = played(served, served.init(7), HORIZON)
    return {"arms": arms, "state": numbers(state)}


def numbers(state):
    """Returns a state's arrays as one."""
    arrays = [array.ravel() for array in to_arrays(state).values() if array.dtype.kind == "f"]
    return np.concatenate([np.empty(0), *arrays])


CASES = {
    **{name: lambda name=name: multitask(name) for name in MULTITASK},
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
