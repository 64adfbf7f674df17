# %% [markdown]
# # Write a method
#
# A method for networks is one class: its settings, and a function that returns what clients and server do, as pure
# functions of *slots*, which are networks' parameters by name. The idea here: in each local step we pull the model a
# little towards where the round began, by a share `pull` of the distance.
#
# ## The method
#
# The server sends its one slot, `model`. A client works on two: the model, and where it began. A step gives the
# *direction* along which the model moves, `w <- w - eta d`. After the last step the model leaves the client; it keeps
# nothing. The server replaces its model by the mean of those, weighted by rows.
#
# Settings are fields with a type, a range, a meaning and a default.

# %%
from typing import Annotated

from annotated_types import Interval

import engram
from engram.core import (
    Client,
    Eta,
    FromMean,
    Method,
    Phase,
    Served,
    Server,
    kinds_of,
    replace,
    sends,
)


@engram.method("pulled", source="this page")
class Pulled:
    """Local steps that are pulled back to where the round began."""

    eta: Eta = 0.1
    pull: Annotated[float, Interval(ge=0, lt=1), "share of the way back, in each step"] = 0.05

    def build(self, context):  # w <- w - eta grad L(w) - pull (w - w0)
        def begin(received, kept, batch):
            return {"model": received["model"], "start": received["model"]}

        def direction(work, batches):
            w, start = work["model"], work["start"]
            g = context.objective.gradient(w, batches[0])
            back = self.pull / self.eta
            return {"model": {n: g[n] + back * (w[n] - start[n]) for n in w}}, work

        def end(received, work):
            return {"model": work["model"]}, {}

        def serve(received, kept, trained):
            return Served((received["model"],))

        return Method(
            Server({"model": context.network.initial}, sends("model"), FromMean(replace, "rows")),
            Client(begin, (Phase(direction, self.eta, affine=True),), end, sends={"model"}),
            serve,
            kinds_of(models="model start"),
        )


# %% [markdown]
# No function branches on a tensor's value, so a whole cohort of clients can be trained at once. `serve` says which
# model a client gets in the end, `kinds_of` that both slots are values of a network's parameters.
#
# `check_method` makes short runs, and raises an error with a line for [each
# property](../extending.md#does-it-keep-the-contract) that does not hold.

# %%
from engram.testing import check_method

check_method("pulled", pull=0.1)

# %% [markdown]
# ## Check a limit
#
# Without a pull it must be FedAvg, up to rounding.

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
found.table[["accuracy", "accuracy-std"]].astype(float).round(3)

# %% alt="Accuracy against rounds of the method, FedAvg and learning alone"
found.plot()

# %% [markdown]
# Two seeds decide nothing. Before you believe in a difference, [tune](../tuning.md) both methods alike, take more
# seeds, and look at the intervals. The idea of this page is an old one: see [`fedprox`](../methods/fedprox.md).
#
# In a file of its own the class is a [plug-in](../extending.md#a-plug-in), known to all commands and to nodes on other
# machines. [Extending](../extending.md) shows models that clients keep, servers that make something for each client,
# and whole families.
