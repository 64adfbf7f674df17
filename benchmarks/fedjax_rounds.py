"""Rounds of FedJAX's own FedAvg on Haiku networks; JAX and its libraries are all that it needs."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import numpy as np

_HAIKU: Final = {2: (1, 0), 4: (2, 3, 1, 0)}  # PyTorch's axes of a weight in Haiku's order
_TORCH: Final = {2: (1, 0), 4: (3, 2, 0, 1)}  # and back


def import_jax() -> tuple[ModuleType, ModuleType, ModuleType, ModuleType]:
    """Returns Haiku, JAX, ``jax.numpy`` and FedJAX.

    Raises:
        ImportError: One of them is not installed.
    """
    hk, jax, jnp = (import_module(name) for name in ("haiku", "jax", "jax.numpy"))
    # FedJAX 0.0.17, its last release, calls this by a name that JAX has dropped since.
    jax.__dict__["tree_map"] = jax.tree_util.tree_map
    return hk, jax, jnp, import_module("fedjax")


def haiku_layers(channels: Sequence[int], widths: Sequence[int]) -> Callable[[Any], Any]:
    """Returns Haiku's network of the layers of ``benchmarks.networks.layers``."""
    hk, jax, jnp, _ = import_jax()

    def forward(x: Any) -> Any:
        for width in channels:
            x = jax.nn.relu(hk.Conv2D(width, 5)(x))
            x = hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        if channels:
            x = jnp.moveaxis(x, -1, 1)  # flattened in PyTorch's order
        return hk.nets.MLP(widths)(x.reshape(x.shape[0], -1))

    return forward


def fedjax_rounds(
    forward: Callable[[Any], Any],
    clients: Mapping[str, Mapping[str, Any]],
    *,
    eta: float,
    batch: int,
    steps: int,
    start: Sequence[Any] = (),
) -> Callable[[Sequence[str]], Callable[[], list[Any]]]:
    """Returns a function that runs a round on rows in their order, and returns a model's reader.

    Args:
        forward: Haiku's network: logits of classes, or of tokens, from inputs.
        clients: Each client's inputs ``x`` and targets ``y``.
        eta: Step size.
        batch: Rows of a step.
        steps: Steps of a client in a round.
        start: Arrays to start from instead, in PyTorch's order and shapes; so are models read.
    """
    hk, jax, _, fedjax = import_jax()
    held = {name.encode(): dict(rows) for name, rows in clients.items()}
    example = {name: array[:1] for name, array in next(iter(held.values())).items()}
    network = hk.transform(lambda rows: forward(rows["x"]))
    model = fedjax.create_model_from_haiku(network, example, _loss, eval_metrics={})
    method = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(eta),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=batch, num_epochs=None, num_steps=steps, skip_shuffle=True
        ),
    )
    federated = fedjax.InMemoryFederatedData(held)
    params = model.init(jax.random.PRNGKey(0))
    if start:
        pairs = zip(start[::2], start[1::2], strict=True)
        each = zip(params, pairs, strict=True)
        params = {name: {"w": w.transpose(_HAIKU[w.ndim]), "b": b} for name, (w, b) in each}
    state = method.init(params)

    def run(names: Sequence[str]) -> Callable[[], list[Any]]:
        nonlocal state
        asked = [
            (name, rows, jax.random.PRNGKey(int(name)))
            for name, rows in federated.get_clients([name.encode() for name in names])
        ]
        state, _ = method.apply(state, asked)
        jax.block_until_ready(state.params)
        return leaves

    def leaves() -> list[Any]:
        each = ((layer["w"], layer["b"]) for layer in state.params.values())
        pairs = ((np.array(w).transpose(_TORCH[w.ndim]), np.array(b)) for w, b in each)
        return [leaf for pair in pairs for leaf in pair]

    return run


def _loss(rows: Any, outputs: Any) -> Any:
    """Returns each row's cross-entropy, a mean over its tokens if it has several."""
    _, jax, jnp, _ = import_jax()
    log_probabilities = jnp.take_along_axis(jax.nn.log_softmax(outputs), rows["y"][..., None], -1)
    return -log_probabilities.reshape(len(outputs), -1).mean(axis=1)
