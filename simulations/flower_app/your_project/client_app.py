"""A node: it trains the model that it receives, and scores it."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from engram.flower import batches, mod
from your_project.task import Net, load_data
from your_project.task import test as test_fn
from your_project.task import train as train_fn

app = ClientApp(mods=[mod])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Trains the model on local data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id, config = context.node_config["partition-id"], context.run_config
    trainloader, _ = load_data(partition_id, config["batch-size"])

    train_loss = train_fn(
        model,
        batches(trainloader),
        config["local-epochs"],
        msg.content["config"]["lr"],
    )

    metrics = {"train_loss": train_loss, "num-examples": len(trainloader.dataset)}
    arrays = ArrayRecord(model.state_dict())
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Scores the model on local data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id, config = context.node_config["partition-id"], context.run_config
    _, testloader = load_data(partition_id, config["batch-size"])

    eval_acc = test_fn(model, testloader)

    metrics = {"eval_acc": eval_acc, "num-examples": len(testloader.dataset)}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
