"""The server: it asks nodes to train and to score, and merges their updates."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from engram.strategies import Ditto
from your_project.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs all rounds, and saves the global model."""
    config = context.run_config
    fraction_evaluate = config["fraction-evaluate"]
    global_model = Net()
    arrays = ArrayRecord(global_model.state_dict())

    strategy = Ditto(global_model, fraction_evaluate=fraction_evaluate)

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )

    print("accuracy by round:", result.evaluate_metrics_clientapp)
    torch.save(result.arrays.to_torch_state_dict(), config["out"])
