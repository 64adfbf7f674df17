# %% [markdown]
# # Your own model and data
#
# Ten hospitals want to predict which patients will need intensive care. Their tables must not leave them, and half
# of them have a laboratory value on a scale that runs the other way.
#
# ## Data
#
# Data are a dictionary: for each client, its rows and their targets.

# %%
import numpy
import pandas

rng = numpy.random.default_rng(0)
names = ["bern", "graz", "kiel", "lyon", "oslo", "riga", "split", "turin", "ulm", "zadar"]


def patients(number, rows):
    age, lab, pulse = rng.normal(size=(3, rows))
    risk = 1.5 * age + 2 * lab + 0.5 * pulse
    measured = -lab if number % 2 else lab  # as if on a scale that runs the other way
    x = numpy.stack([age, measured, pulse], axis=1).astype("float32")
    return x, (risk + rng.logistic(size=rows) > 0).astype(int)


hospitals = {name: patients(number, rng.integers(50, 120)) for number, name in enumerate(names)}
pandas.DataFrame(
    {name: {"patients": len(y), "critical": y.mean()} for name, (x, y) in hospitals.items()}
).T.round(2)

# %% [markdown]
# ## Model
#
# Any `torch.nn.Module` will do. This one has a body and a head.

# %%
import torch
from torch import nn

import engram


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.Tanh())
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.body(x))


common = {
    "model": Net,
    "num_rounds": 40,
    "eta": 0.3,
    "metrics": ["accuracy", "log-loss"],
    "progress": False,
}
found = engram.compare(hospitals, methods=["ditto", "lg-fedavg"], seeds=2, **common)
found.table[["accuracy", "accuracy-worst", "accuracy-common"]].astype(float).round(3)

# %% [markdown]
# `fedavg`'s common model cannot be right for both kinds of hospitals; the row `local` is what to beat.
#
# ## Use a model
#
# A hospital's model is a plain torch module, which needs neither the federation nor its data any more.

# %%
run = found.runs["ditto"][0]
folder = run.export("oslo", out="oslo-model")
oslo = engram.load_model(folder)

x, y = hospitals["oslo"]
with torch.no_grad():
    probabilities = oslo(torch.from_numpy(x[:5])).softmax(-1)[:, 1]
pandas.DataFrame(x[:5], columns=["age", "lab", "pulse"]).assign(risk=probabilities.numpy()).round(2)

# %% [markdown]
# A card beside the model says what it is, and how well it does on the hospital's own test rows:

# %%
card = (folder / "card.md").read_text()
print(card[:1100])

# %% [markdown]
# The same patients, judged by the model of another hospital:

# %%
other = engram.load_model(run.export("riga", out="riga-model"))


def right(module):
    with torch.no_grad():
        return (module(torch.from_numpy(x)).argmax(1).numpy() == y).mean()


print(f"oslo's patients, by oslo's model {right(oslo):.0%}, by riga's {right(other):.0%}")
assert right(oslo) > right(other)

# %% [markdown]
# (Most of these are rows that oslo's model has learned from; the card has the fair figure.)
#
# ## A hospital that comes later
#
# `adapt` makes a model for forty new patients as the run's method would. Its card says what to expect of it:
# cross-validated, beside a model of these forty rows alone.

# %%
x_new, y_new = patients(number=1, rows=40)
numpy.savez("new.npz", x=x_new, y=y_new)
adapted = run.adapt("new.npz", out="new-model")
text = (adapted / "card.md").read_text()
print("\n".join(line for line in text.splitlines() if line.startswith("|")))

# %% [markdown]
# Intervals of forty rows are wide: whether the federation helps the newcomer is to be read there.
#
# [Bring your own data](../your-data.md) and [Bring your own network](../your-network.md) have files, images, tasks,
# losses and metrics; [Use the models](../models.md) has ONNX, predictions for a CSV file, and serving.
