"""Apps of users on nodes in this process, with bytes between, and networks and loops for them."""

import itertools
import pickle

import torch
from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch.nn.functional import cross_entropy

from engram.flower import client
from engram.wire.flower import to_params
from engram.wire.messages import RAISED

ROWS = 6


def speak(run_id, node=1):
    """Lets this process create messages of a run as a node, or as the SuperLink."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, node


class Nodes(Grid):
    """Nodes of one ClientApp, each with a context that lasts.

    Attributes:
        contexts: By node.
        sent: All messages.
        errors: What the app raised.
    """

    def __init__(self, app, count, run_id=7, first=100):
        self.app, self.run_id, self.sent, self.errors = app, run_id, [], []
        self._ids = itertools.count(1)
        self.contexts = {
            first + i: Context(run_id, first + i, {"partition-id": i}, RecordDict(), {})
            for i in range(count)
        }
        speak(run_id)

    def get_node_ids(self):
        return [*self.contexts]

    def send_and_receive(self, messages, *, timeout=None):
        return [self.answer(message) for message in messages]

    def answer(self, message):
        message.metadata.__dict__["_message_id"] = str(next(self._ids))
        self.sent.append(message)
        node = message.metadata.dst_node_id
        asked = pickle.loads(pickle.dumps(message))
        speak(self.run_id, node)
        try:
            reply = self.app(asked, self.contexts[node])
        except Exception as error:
            self.errors.append(error)
            reply = Message(Error(RAISED, str(error)), reply_to=asked)
        finally:
            speak(self.run_id)
        return pickle.loads(pickle.dumps(reply))

    run = property(lambda self: None)
    set_run = create_message = push_messages = pull_messages = None


class Net(torch.nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        self.body = torch.nn.Linear(5, 8)
        self.norm = torch.nn.BatchNorm1d(8) if norm else torch.nn.Identity()
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.body(x))))


def loss(net, batch):
    x, y = batch
    return cross_entropy(net(x), y)


def fit(net, batches, lr=0.1, **options):
    """A loop of a user's, which knows nothing of Engram."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, **options)
    for batch in batches:
        optimizer.zero_grad()
        loss(net, batch).backward()
        optimizer.step()


BATCHES = [
    (torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(i)), torch.arange(ROWS) % 3)
    for i in range(4)
]


def trainer(make=Net, batches=lambda session: BATCHES, steps=None, **options):
    """Returns a function that trains with a block around the loop."""

    def train(msg, context):
        net = make()
        with client(msg, context, net, steps=steps) as session:
            fit(net, batches(session), **options)
        return session.reply(ROWS, loss=1.0)

    return train


def unscored(msg, context):
    content = RecordDict({"metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=msg)


def run(strategy, train, evaluate=unscored, rounds=2, nodes=2, first=100, **how):
    """Runs a strategy on nodes; returns its result, and the grid."""
    app = ClientApp()
    app.train()(train)
    app.evaluate()(evaluate)
    grid = Nodes(app, nodes, first=first)
    return strategy.start(grid, num_rounds=rounds, **how), grid


def gap(mine, theirs):
    """Returns the largest difference of arrays of the same names."""
    assert mine.keys() == theirs.keys()
    gaps = (float((mine[n] - x).abs().max()) for n, x in theirs.items() if x.numel())
    return max(gaps, default=0.0)


def kept(context):
    """Returns the slots in a client's context, by path."""
    found = [key for key in context.state if key.startswith("engram-kept.")]
    newest = max(found, key=lambda key: int(key.rpartition(".")[2]), default=None)
    return {} if newest is None else to_params(context.state[newest])
