"""Rounds of FedJAX's own FedAvg on Haiku networks; JAX and its libraries are all that it needs."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any


def import_jax() -> tuple[ModuleType, ModuleType, ModuleType, ModuleType]:
    """Returns Haiku, JAX, ``jax.numpy`` and FedJAX.

    Raises:
        ImportError: One of them is not installed.
    """
    hk, jax, jnp = (import_module(name) for name in ("haiku", "jax", "jax.numpy"))
    # FedJAX 0.0.17, its last release, calls this by a name that JAX has dropped since.
    jax.__dict__["tree_map"] = jax.tree_util.tree_map
    return hk, jax, jnp, import_module("fedjax")


def fedjax_rounds(
    forward: Callable[[Any], Any],
    clients: Mapping[str, Mapping[str, Any]],
    *,
    eta: float,
    batch: int,
    steps: int,
    seed: int,
) -> Callable[[Sequence[str]], None]:
    """Returns a function that runs a round of some clients, from a start of FedJAX's own.

    Args:
        forward: Haiku's network: logits of classes, or of tokens, from inputs.
        clients: Each client's inputs ``x`` and targets ``y``.
        eta: Step size.
        batch: Rows of a step.
        steps: Steps of a client in a round.
        seed: Seed of the start and of the order of rows.
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
            batch_size=batch, num_epochs=None, num_steps=steps, seed=seed
        ),
    )
    federated = fedjax.InMemoryFederatedData(held)
    state = method.init(model.init(jax.random.PRNGKey(seed)))

    def run(names: Sequence[str]) -> None:
        nonlocal state
        asked = [
            (name, rows, jax.random.PRNGKey(int(name)))
            for name, rows in federated.get_clients([name.encode() for name in names])
        ]
        state, _ = method.apply(state, asked)
        jax.block_until_ready(state.params)

    return run


def _loss(rows: Any, outputs: Any) -> Any:
    """Returns each row's cross-entropy, a mean over its tokens if it has several."""
    _, jax, jnp, _ = import_jax()
    log_probabilities = jnp.take_along_axis(jax.nn.log_softmax(outputs), rows["y"][..., None], -1)
    return -log_probabilities.reshape(len(outputs), -1).mean(axis=1)
