"""Other systems on the same rows, each in a process that does a round for each line it reads.

``python -m benchmarks.module_peers PEER CASE FOLDER METHOD`` is started by
``benchmarks.contenders``, in an environment with peers, which needs neither this platform's
requirements nor their versions. It answers ``ready``, or ``missing`` and why; then ``ms`` and the
milliseconds of each round. Every client trains in each round, on the rows of the first one, in
their order; the model after the first round is left in the folder.
"""

import copy
import functools
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module as of
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import plain
from benchmarks.fedjax_rounds import fedjax_rounds, haiku_layers, import_jax
from benchmarks.networks import OWN, STEP_SIZE, TOKENS, WORKS, Case, loss
from benchmarks.pfllib_pairs import PAIRS
from engram.networks.vision import torchvision

ONE_THREAD: Final = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Task(NamedTuple):
    """A method and a case, with the model that rounds start from and the rows they train on.

    Attributes:
        method: Our name of the method.
        case: The network, and what is trained for how long.
        start: The model, by the network's names.
        x: Inputs, shape (clients, steps, batches of a step, batch size, ...).
        y: Targets, likewise.
    """

    method: str
    case: Case
    start: dict[str, Tensor]
    x: Tensor
    y: Tensor

    @property
    def rows(self) -> list[tuple[Tensor, Tensor]]:
        """Each client's rows, which one pass goes over: those of the steps' first batches."""
        x, y = (each[:, :, 0].flatten(1, 2) for each in (self.x, self.y))
        return list(zip(x, y, strict=True))

    def network(self) -> nn.Module:
        """Returns a network that starts from the model."""
        made = self.case.make()
        made.load_state_dict(self.start)
        return made


@functools.cache  # once in each process
def read_task(name: str, folder: Path, method: str) -> Task:
    """Returns a method's task on a case, as ``benchmarks.peers.write_round`` has written it."""
    arrays = np.load(folder / "rows.npz")
    x, y = (torch.from_numpy(arrays[key]) for key in ("x", "y"))
    return Task(method, (OWN | WORKS)[name], torch.load(folder / "start.pt"), x, y)


class Turns:
    """A peer's turn, and its answer."""

    def __init__(self, left: Path) -> None:
        """Keeps peers' output off the answers; ``left`` receives the first model."""
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

    def end_round(self, model: Callable[[], Any] | None = None) -> None:
        """Reports how long the round took, and waits for the next; ``model`` reads the model."""
        ms = 1000 * (time.perf_counter() - self._begun)
        if model is not None and not self._left.exists():
            torch.save(model(), self._left)
        self.say(f"ms {ms}")
        self._wait()

    def _wait(self) -> None:
        if not sys.stdin.readline():
            os._exit(0)
        self._begun = time.perf_counter()


def plain_torch(task: Task, turns: Turns) -> None:
    """A method in a plain loop."""
    network, model = task.network(), task.start
    clients = []
    for x, y in zip(task.x, task.y, strict=True):
        batches = list(zip(x.flatten(0, 1), y.flatten(0, 1), strict=True))
        own = copy.deepcopy(network)
        clients.append((len(y), functools.partial(plain.train, task.method, network, batches, own)))
    turns.begin()
    while True:
        model = plain.plain_round(network, model, clients)
        turns.end_round(functools.partial(dict, model))


def pfl_research(task: Task, turns: Turns) -> None:
    """FedAvg of pfl-research 0.6.0, by its simulated backend; it evaluates in the first round."""
    rows = task.rows
    federated, nn_params = of("pfl.data.federated_dataset"), of("pfl.algorithm.base")
    measures, simulate = of("pfl.metrics"), of("pfl.aggregate.simulate")

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = task.network()

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return loss(self.net(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            return {"loss": measures.Weighted(self.loss(x, y).item(), 1)}

    module = Trained()

    class Turn(of("pfl.callback.base").TrainingProcessCallback):  # type: ignore[misc]  # untyped
        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Any]:
            turns.end_round(module.net.state_dict)
            return False, measures.Metrics()

    train = federated.FederatedDataset(
        lambda client: of("pfl.data.dataset").Dataset([*rows[client]], user_id=str(client)),
        of("pfl.data.sampling").get_user_sampler("minimize_reuse", range(len(rows))),
    )
    params = nn_params.NNAlgorithmParams(
        central_num_iterations=10**9,
        evaluation_frequency=10**9,
        train_cohort_size=len(rows),
        val_cohort_size=0,
    )
    local = of("pfl.hyperparam").NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=STEP_SIZE, local_batch_size=task.case.batch
    )
    by_rows = of("pfl.aggregate.weighting").WeightByDatapoints()
    backend = simulate.SimulatedBackend(train, train, postprocessors=[by_rows])
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    model = of("pfl.model.pytorch").PyTorchModel(module, torch.optim.SGD, central)
    averaging = of("pfl.algorithm.federated_averaging").FederatedAveraging()
    turns.begin()
    averaging.run(params, backend, model, local, callbacks=[Turn()], send_metrics_to_platform=False)


_PFEDME: Final = PAIRS["pfedme"].theirs
_FLUKE: Final[dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]]] = {
    "fedavg": ("", "CentralizedFL", {}, {}),
    "per-fedavg": (".per_fedavg", "PerFedAVG", {}, {"mode": "FO", "beta": STEP_SIZE}),
    "pfedme": (".pfedme", "PFedMe", {"lamda": _PFEDME["lamda"], "mu": 0.0}, {"k": _PFEDME["K"]}),
    "ditto": (".ditto", "Ditto", {}, {"tau": 1, "lam": PAIRS["ditto"].ours["lambda_"]}),
}
"""Module and class in ``fluke.algorithms``, settings of optimizers and of clients."""


def fluke(task: Task, turns: Turns) -> None:
    """A method of fluke-fl 0.8.1; its clients keep their optimizers."""
    torchvision()  # which it imports
    nothing = dict.fromkeys(("pre_fit", "post_fit", "server", "locals"), False)
    of("fluke").FlukeENV().set_eval_cfg(**nothing)
    module, name, steps, settings = _FLUKE[task.method]
    algorithm = getattr(of(f"fluke.algorithms{module}"), name)
    client, server, optimizer = (
        getattr(algorithm, f"get_{kind}_class")(algorithm)
        for kind in ("client", "server", "optimizer")
    )
    net = task.network()
    configured = of("fluke.config").OptimizerConfigurator(
        {"name": optimizer, "lr": STEP_SIZE} | steps
    )
    personal = {"model": net} if task.method == "ditto" else {}
    everyone = [
        client(
            index=index,
            train_set=of("fluke.data").FastDataLoader(
                x, y, num_labels=TOKENS, batch_size=task.case.batch
            ),
            test_set=None,
            optimizer_cfg=configured,
            loss_fn=loss,
            local_epochs=1,
            **settings,
            **personal,
        )
        for index, (x, y) in enumerate(task.rows)
    ]

    class Turn(of("fluke.utils").FederationObserver):  # type: ignore[misc]  # untyped
        def end_round(self, round: int) -> None:  # noqa: A002, ARG002 - its caller's name
            turns.end_round(net.state_dict)

    mixed = {"beta": _PFEDME["beta"]} if task.method == "pfedme" else {}
    run = algorithm(
        len(everyone),
        None,
        None,
        clients=everyone,
        server=server(net, None, everyone, weighted=True, **mixed),
    )
    run.attach(Turn())
    turns.begin()
    run.run(10**9, 1.0)


def fedjax(task: Task, turns: Turns) -> None:
    """FedAvg of FedJAX 0.0.17, on Haiku networks; those of ``OWN`` start from their own weights."""
    hk, jax, jnp, _ = import_jax()
    case = task.case

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
    if not (case.channels or case.recurrent or case.widths):
        raise ImportError("it has no such network")
    layers = haiku_layers(case.channels, case.widths) if case.widths else None

    def arrays(x: Tensor, y: Tensor) -> dict[str, Any]:
        x = x.movedim(1, -1) if images else x.int() if case.recurrent else x
        return {"x": x.numpy(), "y": y.int().numpy()}

    clients = {str(client): arrays(x, y) for client, (x, y) in enumerate(task.rows)}
    run = fedjax_rounds(
        layers or (convolutions if images else recurrent),
        clients,
        eta=STEP_SIZE,
        batch=case.batch,
        steps=case.steps,
        start=[leaf.numpy() for leaf in task.start.values()] if layers else (),
    )
    turns.begin()
    while True:
        read = run([*clients])
        turns.end_round(functools.partial(_tensors, read) if layers else None)


def _tensors(read: Callable[[], list[Any]]) -> list[Tensor]:
    return [torch.from_numpy(leaf) for leaf in read()]


PEERS: Final = {"pfl-research": pfl_research, "fluke": fluke, "FedJAX": fedjax}


def main(peer: str, name: str, folder: Path, method: str) -> None:
    """Does a round whenever it is asked for one, until nobody is there to ask."""
    turns = Turns(folder / f"after-{peer}.pt")
    try:
        (PEERS | {"plain PyTorch": plain_torch})[peer](read_task(name, folder, method), turns)
    except ImportError as error:
        turns.say(f"missing {error}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
