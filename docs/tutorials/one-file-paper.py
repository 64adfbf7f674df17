# %% [markdown]
# # A paper in one file
#
# From rows to a table, a figure and models: five methods tuned by one budget, on three seeds. Change `load`
# and `Net`, and it is yours.
#
# ## Rows and their split
#
# A client is its training rows and its test rows: fifteen wards learn from their patients until 2023, and are
# tested on those of 2024. Yours come [from files](../your-data.md).

# %%
import numpy
import pandas


def load(ward):
    rng = numpy.random.default_rng(ward)
    rows = pandas.DataFrame(rng.normal(size=(80, 4)), columns=["age", "pulse", "lactate", "dose"])
    rows["year"] = rng.integers(2020, 2025, len(rows))
    habit = 1.5 if ward % 3 else -1.5  # in a third of the wards, a high dose is a good sign
    risk = rows.age + rows.lactate**2 - 1 + habit * rows.dose
    return rows.assign(critical=(risk + 0.5 * rng.logistic(size=len(rows)) > 0).astype(int))


columns = ["age", "pulse", "lactate", "dose"]
data = {}
for ward in range(15):
    rows = load(ward)
    before, after = rows[rows.year < 2024], rows[rows.year == 2024]
    data[f"ward {ward}"] = (before[columns], before.critical, after[columns], after.critical)
print({name: (len(part[0]), len(part[2])) for name, part in list(data.items())[:3]})

# %% [markdown]
# ## Network
#
# Any `torch.nn.Module`: methods that share a part of it share all but its last layer.

# %%
from torch import nn

import engram


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))


# %% [markdown]
# ## Comparison
#
# `tuned=(4, 1)` gives every method four trials on one seed; a paper takes more. Then each runs with its best
# settings on three other seeds, beside references.

# %%
found = engram.compare(
    data,
    methods=["fedavg", "ditto", "fedrep", "apfl", "local"],
    tuned=(4, 1),
    seeds=3,
    model=Net,
    num_rounds=30,
    local_epochs=4,
    metrics=["accuracy", "log-loss"],
    out="paper",
    progress=False,
)
print(found.summary().attrs["answer"])
found.summary()[["accuracy", "accuracy-seed-std", "accuracy-worst"]].astype(float).round(3)

# %% [markdown]
# ## What may be said
#
# A difference is a result where its (simultaneous) interval excludes zero.

# %%
differences = found.significance()
shown = differences[differences["shown"].astype(bool)]
shown[["one", "other", "difference", "low", "high"]].round(3).head(8)

# %% [markdown]
# ## Table and figure

# %% alt="Accuracy of five methods by round, each a mean over three seeds with a band"
print(found.to_latex("table.tex"))
figure = found.plot("accuracy")
figure.savefig("curves.pdf")
figure

# %% [markdown]
# `engram show paper --format pdf --width one` draws all figures as wide as a column. Settings by tuning:

# %%
print({name: runs[0].experiment.own for name, runs in found.runs.items()})

# %% [markdown]
# ## Models
#
# Each ward's model is a plain torch module with a card.

# %%
folder = found.runs["ditto"][0].export("ward 3", out="ward-3")
print(sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# [Take it to the paper](../paper.md) says what the table's columns mean, and what to report beside them.
