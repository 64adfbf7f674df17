# %% [markdown]
# # Write a method
#
# You have an idea for an algorithm, and want to see whether it beats FedAvg. In Engram a method for
# networks is a *local rule*, two pure functions that say what a client computes, and a class that gives
# it a name and settings. Everything else is there: data, evaluation, clipping, privacy, checkpoints,
# tables, plots, and deployment.
#
# The idea here: clients should not forget what the others have learned. In each local step we pull the
# model a little towards where the round began, by a share `pull` of the distance.
#
# ## The rule
#
# `w` is the model, a dictionary of tensors; `u` is what the client knows beside it. `init` is called once
# a round, and keeps where it began; `step` is called for each local step.

# %%
import engram


def pulled(loss, eta, pull):  # w <- w - eta grad L(w) - pull (w - w0)
    gradient = engram.gradient(loss)

    def init(w, batch):
        return dict(w)

    def step(w, start, batches):
        g = gradient(w, batches[0])
        moved = {name: w[name] - eta * g[name] - pull * (w[name] - start[name]) for name in w}
        return moved, start

    return engram.LocalRule(init, step, 1, needs_initial_batch=False, state_is_model=False)


# %% [markdown]
# A rule never branches on a tensor's value. That is why a whole cohort of clients can be trained at once,
# though you wrote it for one.
#
# ## The method
#
# Settings are fields with a default, a range and a meaning. `aggregate` says what the server makes of the
# models; without it, that is their plain mean. Here clients count by their rows, as in FedAvg.

# %%
from engram.aggregates import mean


@engram.method
class Pulled(engram.LocalMethod):
    """Local steps that are pulled back to where the round began."""

    name = "pulled"
    source = "this page"
    eta: float = engram.Field(0.1, gt=0, description="step size")
    pull: float = engram.Field(0.05, ge=0, lt=1, description="share of the way back, in each step")

    def rule(self, loss):
        return pulled(loss, self.eta, self.pull)

    def aggregate(self, shared):
        return mean("examples")


# %% [markdown]
# Does it keep the contract? This makes short runs, and raises an error with a line for each property that
# does not hold: that functions are pure, that clients trained together get what they get one by one, that
# a run which stopped can go on, and that lost replies do no harm.

# %%
from engram.testing import check_method

check_method("pulled", pull=0.1)

# %% [markdown]
# ## Check a limit
#
# Which values make it another method? Without a pull it must be FedAvg, up to rounding.

# %%
same = {"num_rounds": 5, "eta": 0.3, "progress": False}
mine = engram.simulate(method="pulled", pull=0.0, **same)
theirs = engram.simulate(method="fedavg", **same)
gap = max(float((mine.model[name] - theirs.model[name]).abs().max()) for name in mine.model)
print(f"largest difference between the models: {gap:.1e}")
assert gap < 1e-5

# %% [markdown]
# A setting out of its range is refused before anything starts:

# %%
try:
    engram.simulate(method="pulled", pull=2.0)
except ValueError as error:
    print(error)

# %% [markdown]
# ## Is it any good?

# %%
task = {"num_rounds": 40, "local_steps": 20, "eta": 0.3, "seeds": 2, "progress": False}
found = engram.compare(methods=["pulled"], **task)
found.table[["accuracy", "accuracy-std", "accuracy-before"]].astype(float).round(3)

# %% alt="Accuracy against rounds of the method, FedAvg and learning alone"
found.plot()

# %% [markdown]
# Two seeds decide nothing. Before you believe in a difference: tune both methods alike
# (`engram.tune`; a range for its search is `json_schema_extra=engram.searched(...)`), take more seeds,
# and look at the paired intervals that `engram compare` prints. The idea of this page is an old one: see
# [`fedprox`](../methods/fedprox.md).
#
# In a file of its own the class is a [plug-in](../extending.md#a-plug-in), known to all commands and to
# nodes on other machines. [Extending](../extending.md) shows personal states, aggregates, losses, and
# whole families.
