"""Other systems' FedAvg on the same rows, in a process that does a round for each line it reads.

``python -m benchmarks.module_peers PEER CASE FOLDER`` is started by ``benchmarks.modules``, in an
environment with peers, which needs neither this platform's requirements nor their versions. It
answers ``ready``, or ``missing`` and why; then ``ms`` and the milliseconds of each round. Every
client trains in each round, on the rows of the first one, in their order; the model after the first
round is left in the folder.
"""

import os
import sys
import time
from importlib import import_module as of
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.fedjax_rounds import fedjax_rounds, import_jax
from benchmarks.networks import CASES, CLIENTS, STEP_SIZE, TOKENS, Case, loss
from engram.vision import torchvision

ONE_THREAD: Final = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
Rows = list[tuple[Tensor, Tensor]]  # of each client, in the order of its steps


class Turns:
    """When a peer may go on, and what it answers."""

    def __init__(self, left: Path) -> None:
        """Keeps what peers print off the answers; ``left`` is where the first model goes."""
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._left, self._begun = left, 0.0

    def say(self, line: str) -> None:
        """Answers."""
        print(line.replace("\n", " ")[:300], file=self._answers, flush=True)

    def begin(self) -> None:
        """Reports that all is ready, and waits for the first round."""
        self.say("ready")
        self._wait()

    def end_round(self, model: dict[str, Any] | None = None) -> None:
        """Reports how long the round took, and waits for the next."""
        ms = 1000 * (time.perf_counter() - self._begun)
        if model is not None and not self._left.exists():
            torch.save(model, self._left)
        self.say(f"ms {ms}")
        self._wait()

    def _wait(self) -> None:
        if not sys.stdin.readline():
            os._exit(0)
        self._begun = time.perf_counter()


def pfl_research(case: Case, start: dict[str, Tensor], rows: Rows, turns: Turns) -> None:
    """FedAvg of pfl-research 0.6.0, by its simulated backend; it evaluates in the first round."""
    federated, nn_params = of("pfl.data.federated_dataset"), of("pfl.algorithm.base")
    measures, simulate = of("pfl.metrics"), of("pfl.aggregate.simulate")

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(case, start)

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return loss(self.net(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            return {"loss": measures.Weighted(self.loss(x, y).item(), 1)}

    module = Trained()

    class Turn(of("pfl.callback.base").TrainingProcessCallback):  # type: ignore[misc]  # untyped
        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Any]:
            turns.end_round(module.net.state_dict())
            return False, measures.Metrics()

    train = federated.FederatedDataset(
        lambda client: of("pfl.data.dataset").Dataset([*rows[client]], user_id=str(client)),
        of("pfl.data.sampling").get_user_sampler("minimize_reuse", range(CLIENTS)),
    )
    params = nn_params.NNAlgorithmParams(
        central_num_iterations=10**9,
        evaluation_frequency=10**9,
        train_cohort_size=CLIENTS,
        val_cohort_size=0,
    )
    local = of("pfl.hyperparam").NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=STEP_SIZE, local_batch_size=case.batch
    )
    by_rows = of("pfl.aggregate.weighting").WeightByDatapoints()
    backend = simulate.SimulatedBackend(train, train, postprocessors=[by_rows])
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    model = of("pfl.model.pytorch").PyTorchModel(module, torch.optim.SGD, central)
    averaging = of("pfl.algorithm.federated_averaging").FederatedAveraging()
    turns.begin()
    averaging.run(params, backend, model, local, callbacks=[Turn()], send_metrics_to_platform=False)


def fluke(case: Case, start: dict[str, Tensor], rows: Rows, turns: Turns) -> None:
    """FedAvg of fluke-fl 0.8.1, whose clients keep their optimizers."""
    torchvision()  # which it imports
    nothing = dict.fromkeys(("pre_fit", "post_fit", "server", "locals"), False)
    of("fluke").FlukeENV().set_eval_cfg(**nothing)
    net = network(case, start)
    optimizer = of("fluke.config").OptimizerConfigurator({"name": "SGD", "lr": STEP_SIZE})
    everyone = [
        of("fluke.client").Client(
            index=client,
            train_set=of("fluke.data").FastDataLoader(
                x, y, num_labels=TOKENS, batch_size=case.batch
            ),
            test_set=None,
            optimizer_cfg=optimizer,
            loss_fn=loss,
            local_epochs=1,
        )
        for client, (x, y) in enumerate(rows)
    ]

    class Turn(of("fluke.utils").FederationObserver):  # type: ignore[misc]  # untyped
        def end_round(self, round: int) -> None:  # noqa: A002, ARG002 - its caller's name
            turns.end_round(net.state_dict())

    server = of("fluke.server").Server(net, None, everyone, weighted=True)
    averaging = of("fluke.algorithms").CentralizedFL(
        CLIENTS, None, None, clients=everyone, server=server
    )
    averaging.attach(Turn())
    turns.begin()
    averaging.run(10**9, 1.0)


def fedjax(case: Case, start: dict[str, Tensor], rows: Rows, turns: Turns) -> None:
    """FedAvg of FedJAX 0.0.17, on Haiku networks of the same layers, from a start of their own."""
    del start
    hk, jax, jnp, _ = import_jax()

    def convolutions(x: Any) -> Any:
        first, second = case.channels
        for width in (first, second):
            x = jax.nn.relu(hk.GroupNorm(4)(hk.Conv2D(width, 3)(x)))
            x = hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return hk.Linear(10)(x.reshape(x.shape[0], -1))

    def recurrent(x: Any) -> Any:
        core = hk.DeepRNN([hk.LSTM(128), hk.LSTM(128)])
        embedded = hk.Embed(TOKENS, 8)(jnp.transpose(x))
        found, _ = hk.dynamic_unroll(core, embedded, core.initial_state(x.shape[0]))
        return jnp.transpose(hk.Linear(TOKENS)(found), (1, 0, 2))

    images = len(case.shape) > 1
    if not (case.channels or case.recurrent):
        raise ImportError("it has no such network")

    def arrays(x: Tensor, y: Tensor) -> dict[str, Any]:
        x = x.movedim(1, -1) if images else x.int()
        return {"x": x.numpy(), "y": y.int().numpy()}

    clients = {str(client): arrays(x, y) for client, (x, y) in enumerate(rows)}
    run = fedjax_rounds(
        convolutions if images else recurrent,
        clients,
        eta=STEP_SIZE,
        batch=case.batch,
        steps=case.steps,
        seed=0,
    )
    turns.begin()
    while True:
        run([*clients])
        turns.end_round()


PEERS: Final = {"pfl-research": pfl_research, "fluke": fluke, "FedJAX": fedjax}


def network(case: Case, start: dict[str, Tensor]) -> nn.Module:
    """Returns a case's network with given weights."""
    made = case.make()
    made.load_state_dict(start)
    return made


def main(peer: str, name: str, folder: Path) -> None:
    """Does a round whenever it is asked for one, until nobody is there to ask."""
    turns = Turns(folder / f"after-{peer}.pt")
    torch.set_num_threads(1)
    found = np.load(folder / "rows.npz")
    x, y = (torch.from_numpy(found[key]).chunk(CLIENTS) for key in ("x", "y"))
    rows = list(zip(x, y, strict=True))
    try:
        PEERS[peer](CASES[name], torch.load(folder / "start.pt"), rows, turns)
    except ImportError as error:
        turns.say(f"missing {error}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
