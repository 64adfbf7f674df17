"""A node: it trains the model that it receives, and scores it."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader

from engram.flower import batches, mod
from your_project.task import Net, load_data
from your_project.task import test as test_fn
from your_project.task import train as train_fn

app = ClientApp(mods=[mod])


def prepare(msg: Message, context: Context) -> tuple[Net, DataLoader, DataLoader]:
    """Returns the received model, and batches of the node's training and test rows."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    batch_size = context.run_config["batch-size"]
    return model, *load_data(context.node_config["partition-id"], batch_size)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Trains the model on local data."""
    model, trainloader, _ = prepare(msg, context)

    train_loss = train_fn(
        model,
        batches(trainloader),
        context.run_config["local-epochs"],
        msg.content["config"]["lr"],
    )

    metrics = {"train_loss": train_loss, "num-examples": len(trainloader.dataset)}
    arrays = ArrayRecord(model.state_dict())
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Scores the model on local data."""
    model, _, testloader = prepare(msg, context)

    eval_acc = test_fn(model, testloader)

    metrics = {"eval_acc": eval_acc, "num-examples": len(testloader.dataset)}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
