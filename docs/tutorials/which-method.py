# %% [markdown]
# # Which method for my federation?
#
# Ten of twenty clients have some of each of the digits 0 to 4; the others have much of one digit and a little of
# another. Should they learn together at all? And is one model for all enough? First, look at who holds what.

# %% language="bash"
# engram data --set partition=halves --set num-clients=20

# %% [markdown]
# ## Compare
#
# `local`, in which each client learns by itself, and `fedavg`, which learns one global model, are in every
# comparison. We add two methods that give each client a model of its own.

# %% language="bash"
# engram compare ditto apfl --seeds 2 --set num-rounds=40 --set eta=0.3 --out runs/which

# %% [markdown]
# ## Read the table
#
# - `worse` is the percentage of clients that are worse off than by themselves. Read `p10` and `worst` beside
#   `mean ± sd` (over clients): a good mean may hide clients that are badly served.
# - A row is of the models that serve clients. With `+ fine-tuning`, each client takes ten gradient steps from its
#   model first. `global` is the global model as it is.
# - The references below need neither a network nor a federation; the answer says whether a method beats the best
#   of them.
# - The second table compares the best *validation* score with each other row on *test* rows. Where a dagger (†)
#   marks a difference, take the simpler method. Two seeds show only large differences; take five.
#
# [What the figures mean](../getting-started.md#what-the-figures-mean) has the rest. In the picture a dot is a
# client: its gain over learning by itself, and over the global model.

# %% alt="Each client's gain over learning by itself, and over the global model"
from IPython.display import Image

Image("runs/which/gains.png")

# %% [markdown]
# ## Conclude
#
# The same figures in Python:

# %%
import engram


def scores(method, column="accuracy"):  # of the model that serves a client
    runs = [engram.load_run(f"runs/which/{method}-seed{seed}") for seed in (0, 1)]
    return sum(run.clients[column] for run in runs) / len(runs)


alone = scores("local")
global_model, tuned = scores("fedavg"), scores("fedavg", "accuracy-tuned")
print(
    f"alone {alone.mean():.1%}, global model {global_model.mean():.1%}, fine-tuned {tuned.mean():.1%}"
)
print(f"{(tuned < alone).sum()} of {len(alone)} clients do worse with the federation than alone")

assert global_model.mean() < alone.mean() < tuned.mean()

# %% [markdown]
# - One model for all is worse here than no federation: the clients' rows differ too much.
# - A few steps of fine-tuning at each client repair it. Compare with that, not with the global model alone.
# - Whether a personalizing method does better than this is what the second table shows. With so few clients it seldom
#   shows a difference.
#
# Before you decide on your data: tune each method (`engram tune`), and take more seeds. [Choose a
# method](../methods.md#when-to-use-which) has advice for each, and
# [Results](../results.md#tuned-methods-on-more-federations) the same comparison on nine federations.
