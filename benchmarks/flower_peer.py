"""FedAvg of Flower's own simulation, in a process that does a round for each line it reads.

``python -m benchmarks.flower_peer CASE FOLDER METHOD ACTORS`` is started by
``benchmarks.contenders``, and answers as ``benchmarks.module_peers`` does. Clients train in a plain
PyTorch loop, in so many actors of Ray with one thread each.
"""

import sys
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks import plain
from benchmarks.module_peers import Task, Turns, read_task


def client_app(name: str, folder: Path) -> ClientApp:
    """Returns the clients' side."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        task = read_task(name, folder, "fedavg")
        x, y = (each[int(context.node_config["partition-id"]), :, 0] for each in (task.x, task.y))
        network = task.network()
        network.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        plain.train("fedavg", network, zip(x, y, strict=True))
        sent = RecordDict({"arrays": ArrayRecord(network.state_dict())})
        sent["metrics"] = MetricRecord({"num-examples": y.numel()})
        return Message(sent, reply_to=message)

    return app


def server_app(task: Task, turns: Turns) -> ServerApp:
    """Server's side, which runs a round on request."""
    app = ServerApp()

    class Turn(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            assert arrays is not None  # for mypy: no reply has failed, or the log says which
            turns.end_round(arrays.to_torch_state_dict)
            return arrays, metrics

    @app.main()
    def main(grid: Grid, _: Context) -> None:
        everyone = len(task.x)
        strategy = Turn(
            fraction_evaluate=0.0, min_train_nodes=everyone, min_available_nodes=everyone
        )
        turns.begin()
        strategy.start(grid, ArrayRecord(task.start), num_rounds=10**9)

    return app


def main(name: str, folder: Path, method: str, actors: int) -> None:
    """Does a round whenever it is asked for one, until nobody is there to ask."""
    turns, task = Turns(folder / "after-Flower.pt"), read_task(name, folder, method)
    run_simulation(
        server_app(task, turns),
        client_app(name, folder),
        num_supernodes=len(task.x),
        backend_config={
            "init_args": {"address": "local", "num_cpus": actors},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
