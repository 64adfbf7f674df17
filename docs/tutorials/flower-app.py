# %% [markdown]
# # Personalize the Flower app that you have
#
# You have an app of [Flower](https://flower.ai): a network, a loop that trains it, a ClientApp and a
# ServerApp. Here it becomes one in which each node has a model of its own, by a few lines, and is
# compared with what it was.
#
# ## The app
#
# Six nodes read handwritten digits; each has three of the ten, so that nodes next to each other share
# two, and every other node writes another digit's name on each: no model is right for all. The network,
# the loop and the score know nothing of a federation.

# %%
import numpy
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.body(x))


def rows_of(node):
    digits = load_digits()
    mine = numpy.flatnonzero(numpy.isin(digits.target, [node, node + 1, node + 2]))[node::6]
    x = torch.tensor(digits.data[mine] / 16).float()
    y = torch.tensor((digits.target[mine] * (3 if node % 2 else 1)) % 10)
    cut = len(mine) * 2 // 3
    return TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:])


def fit(net, loader, epochs=2):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


@torch.no_grad()
def score(net, rows):
    x, y = rows.tensors
    return float((net(x).argmax(1) == y).float().mean())


# %% [markdown]
# The two sides are as Flower's quickstart has them. In an app's folder `flwr run` starts them; in a
# notebook `run_simulation` does, which tells what it does in many words.

# %%
import logging
import warnings

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

logging.getLogger("flwr").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="ray")
app = ClientApp()


def received(msg, context):
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return net, *rows_of(context.node_config["partition-id"])


@app.train()
def train(msg, context):
    net, rows, _ = received(msg, context)
    loss = fit(net, DataLoader(rows, 16, shuffle=True))
    metrics = MetricRecord({"loss": loss, "num-examples": len(rows)})
    arrays = ArrayRecord(net.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg, context):
    net, _, rows = received(msg, context)
    metrics = MetricRecord({"accuracy": score(net, rows), "num-examples": len(rows)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


def accuracy(app, strategy):
    """Runs ten rounds; returns the mean accuracy on the nodes' test rows after the last."""
    server, results = ServerApp(), []

    @server.main()
    def main(grid, context):
        start = ArrayRecord(net.state_dict())
        results.append(strategy.start(grid, start, num_rounds=10))

    quiet = {"init_args": {"log_to_driver": False, "num_cpus": 2}}
    run_simulation(server, app, num_supernodes=6, backend_config=quiet)
    return results[0].evaluate_metrics_clientapp[10]["accuracy"]


torch.manual_seed(0)
net = Net()
found = {"FedAvg": accuracy(app, FedAvg())}
print(f"{found['FedAvg']:.0%}")

# %% [markdown]
# ## A model for each node
#
# Ditto trains two models on each batch: the common one, and the node's own, which is held near it. So
# three things change. The ClientApp has the mod, the loop takes `batches(...)` of its loader, and the
# strategy is another one. The node is scored by its own model, though the app loads what it is sent.

# %%
from engram.flower import batches, mod
from engram.strategies import Ditto

app = ClientApp(mods=[mod])
app.evaluate()(evaluate)


@app.train()
def train(msg, context):
    net, rows, _ = received(msg, context)
    loss = fit(net, batches(DataLoader(rows, 16, shuffle=True)))
    metrics = MetricRecord({"loss": loss, "num-examples": len(rows)})
    arrays = ArrayRecord(net.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


found["Ditto"] = accuracy(app, Ditto(net, lambda_=0.1, seed=0))
print(f"{found['Ditto']:.0%}")

# %% [markdown]
# ## A part that stays
#
# With FedRep a node trains its head first, which never leaves it, and then the body, which all share.
# How many steps are of the head is a share of all steps: so the app says how many there are. It does by
# a block around its loop, which also replies; another block scores the model that serves the node.

# %%
from engram.flower import client, served
from engram.strategies import FedRep

app = ClientApp()


@app.train()
def train(msg, context):
    net, (rows, _) = Net(), rows_of(context.node_config["partition-id"])
    loader = DataLoader(rows, 16, shuffle=True)
    with client(msg, context, net, steps=2 * len(loader)) as session:
        loss = fit(net, loader, epochs=2)
    return session.reply(len(rows), loss=loss)


@app.evaluate()
def evaluate(msg, context):
    net, (_, rows) = Net(), rows_of(context.node_config["partition-id"])
    with served(msg, context, net) as session:
        accuracy = score(net, rows)
    return session.reply(len(rows), accuracy=accuracy)


found["FedRep"] = accuracy(app, FedRep(net, personal_share=0.5, seed=0))

# %% [markdown]
# ## What it was worth

# %%
import pandas

assert min(found["Ditto"], found["FedRep"]) > found["FedAvg"] + 0.1
pandas.Series(found, name="accuracy").to_frame().round(2)

# %% [markdown]
# One seed and six nodes decide nothing; but that one model for all is wrong here was known. What each
# method needs of your code, what a node keeps and where, and what is refused, is in
# [Coming from other systems](../coming-from.md#from-flower); [Choose a method](../methods.md) has advice.
