"""Times rounds of FedAvg on networks that are modules, against a plain loop, in one process.

``python -m benchmarks.modules`` prints a row for each network. The contenders take turns, round by
round, with one thread. Ours go through the real strategy and grid.
"""

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads import Platform
from engram.networks import NETWORKS, model
from federation.data.federated import FederatedData, federated_data, model_for
from federation.data.in_memory import hold
from federation.errors import EngramError, Refused
from federation.experiment import Experiment
from federation.methods.local import FedAvg
from federation.streams import Stream, generator, torch_generator

_CLIENTS: Final = 20  # all of whom train in each round
_ROWS: Final = 40  # of each, for training
_TOKENS: Final = 80
_LENGTH: Final = 80
_WARM_UP: Final = 5  # rounds, in which the faster way is found


class _Cnn(nn.Module):
    """Two 3x3 convolutions with group norm and pooling, then a dense layer."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, first, 3, padding=1), nn.GroupNorm(4, first), nn.ReLU()),
            nn.MaxPool2d(2),
            *(nn.Conv2d(first, second, 3, padding=1), nn.GroupNorm(4, second), nn.ReLU()),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(second * 49, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x).flatten(1))
        return found


class _Residual(nn.Module):
    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(4, width), nn.GroupNorm(4, width)])
        wider = given != width
        self.skip = nn.Conv2d(given, width, 1, stride, bias=False) if wider else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[1](self.second(self.norms[0](self.first(x)).relu()))
        found: Tensor = (inner + self.skip(x)).relu()
        return found


class _ResNet8(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Sequential(
            nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(4, 16), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            _Residual(16, 16, 1), _Residual(16, 32, 2), _Residual(32, 64, 2)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.blocks(self.start(x)).mean((2, 3)))
        return found


class _CharacterLstm(nn.Module):
    """The network of LEAF's Shakespeare, with 2 layers of 128."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_TOKENS, 8)
        self.net = nn.LSTM(8, 128, 2, batch_first=True)
        self.head = nn.Linear(128, _TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.net(self.embed(tokens))[0])
        return found


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_TOKENS, 64)
        self.places = nn.Parameter(torch.zeros(_LENGTH, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, _TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        seen = self.net(self.embed(tokens) + self.places[:length], mask=mask, is_causal=True)
        found: Tensor = self.head(seen)
        return found


class _Case(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a row; tokens if it has one axis
    steps: int
    batch: int


CASES: Final = {
    "cnn 8-16, batch 5": _Case(lambda: _Cnn(8, 16), (1, 28, 28), 10, 5),
    "cnn 16-32, batch 10": _Case(lambda: _Cnn(16, 32), (1, 28, 28), 10, 10),
    "resnet-8": _Case(_ResNet8, (3, 32, 32), 5, 10),
    "lstm 2 x 128": _Case(_CharacterLstm, (_LENGTH,), 5, 10),
    "transformer of 2": _Case(_Transformer, (_LENGTH,), 5, 10),
}


def experiment(name: str) -> Experiment:
    """Returns a case's experiment, on random rows."""
    case, rng = CASES[name], np.random.default_rng(0)
    rows, text = _CLIENTS * _ROWS * 5 // 4, len(case.shape) == 1
    arrays: dict[str, Any] = {"task": np.repeat(np.arange(_CLIENTS), rows // _CLIENTS)}
    if text:
        tokens = rng.integers(_TOKENS, size=(rows, _LENGTH + 1))
        arrays |= {"x": tokens[:, :-1], "y": tokens[:, 1:]}
    else:
        images = rng.normal(size=(rows, *case.shape)).astype(np.float32)
        arrays |= {"x": images, "y": np.arange(rows) % 10}
    model(case.make, name)
    return Experiment(
        method="fedavg",
        model=name,
        task="next-token" if text else "classification",
        dataset=hold(arrays),
        partition="natural",
        test_fraction=0.2,
        num_clients=_CLIENTS,
        clients_per_round=_CLIENTS,
        local_steps=case.steps,
        batch_size=case.batch,
        eta=0.05,
    )


def plain_loop(e: Experiment, data: FederatedData) -> Callable[[int], dict[str, Tensor]]:
    """FedAvg as it is usually written: a module, an optimizer, one client after the other."""
    start = model_for(e, data.kind).init(torch_generator(e.seed, Stream.MODEL))
    network = NETWORKS[e.model]()
    merged = {name: leaf.clone() for name, leaf in start.items()}

    def run(server_round: int) -> dict[str, Tensor]:
        nonlocal merged
        before, merged = merged, {name: torch.zeros_like(leaf) for name, leaf in start.items()}
        for client in range(e.num_clients):
            rows = data.train.rows[client]
            rng = generator(e.seed, Stream.LOCAL_STEPS, server_round, client)
            drawn = rows[rng.integers(len(rows), size=e.local_steps * e.batch_size)]
            network.load_state_dict(before, strict=False)  # but for batch norm's counters
            optimizer = torch.optim.SGD(network.parameters(), lr=e.of(FedAvg).eta)
            for some in torch.from_numpy(drawn).view(e.local_steps, e.batch_size):
                x, y = data.train.take(some)
                optimizer.zero_grad()
                loss = functional.cross_entropy(network(x).flatten(0, -2), y.flatten())
                torch.autograd.backward(loss)
                optimizer.step()
            after = network.state_dict()
            merged = {n: leaf + after[n] / e.num_clients for n, leaf in merged.items()}
        return merged

    return run


def time_case(name: str, rounds: int) -> dict[str, Any]:
    """Times a case.

    Returns:
        Milliseconds a round of ``ours`` and ``plain``, medians; their ``ratio``; which ``way`` ours
        has taken; and how far apart the models are after the first round, ``apart``.
    """
    e = experiment(name)
    data = federated_data(e)
    platform, loop = Platform(e, data), plain_loop(e, data)
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    apart = 0.0
    for server_round in range(1, _WARM_UP + rounds + 1):
        start = time.perf_counter()
        platform.round(server_round)
        middle = time.perf_counter()
        theirs = loop(server_round)
        times["ours"].append(1000 * (middle - start))
        times["plain"].append(1000 * (time.perf_counter() - middle))
        if server_round == 1:
            ours = platform.model
            apart = max(float((ours[k] - theirs[k]).abs().max()) for k in theirs)
    medians = {who: statistics.median(found[_WARM_UP:]) for who, found in times.items()}
    way = platform.trainer.way
    return {**medians, "ratio": medians["ours"] / medians["plain"], "way": way, "apart": apart}


def main(
    case: Annotated[str, typer.Option(help=f"of {', '.join(CASES)}; with ;")] = ";".join(CASES),
    rounds: Annotated[int, typer.Option(min=1, help="timed rounds")] = 7,
) -> None:
    """Times rounds of FedAvg on modules, in turns with a plain loop, with one thread."""
    unknown = [name for name in case.split(";") if name not in CASES]
    if unknown:
        raise Refused(f"{unknown[0] or 'nothing'} is none of {', '.join(CASES)}")
    torch.set_num_threads(1)
    table = Table("", "ours, ms a round", "plain loop", "ratio", "way", "apart")
    for name in case.split(";"):
        found = time_case(name, rounds)
        figures = (f"{found['ours']:.0f}", f"{found['plain']:.0f}", f"{found['ratio']:.2f}")
        table.add_row(name, *figures, found["way"], f"{found['apart']:.1e}")
    Console().print(table)


if __name__ == "__main__":
    try:
        typer.run(main)
    except EngramError as error:
        raise SystemExit(f"benchmarks: {error}") from error
