"""Networks as functions of a parameter dictionary, with personal entries."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from torch import Generator, Tensor, nn

from engram.core.checks import must, require
from engram.core.method import Network
from engram.core.types import Batch, Params

Inputs = Any  # a tensor, or a tuple or dictionary of tensors, each with the rows' axis first
Outputs = Tensor  # or, for a loss and metrics of a user, a tuple or dictionary of tensors

Statistics = Literal["average", "local", "fixed"]

Adapters = Literal["shared", "frozen-a", "shared-a", "personal", "dual"]

_ADAPTERS: Final = {
    "shared-a": "*.lora_*B.*",  # lora_B and lora_embedding_B
    "personal": "*.lora_*",
    "dual": "*.lora_*.personal*",
}

VARIANCE: Final = "running_var"
"""Name of a batch norm's running variance."""


class UnknownToken(ValueError):
    """A token is beyond the end of an embedding."""


class Model(NamedTuple):
    """A network.

    Attributes:
        init: ``generator -> params``, float32, on the CPU. Running statistics of batch norm are
            among them: their gradient is zero.
        apply: ``(params, inputs (k, ...)) -> outputs (k, ...)``, in evaluation: nothing is dropped,
            and batch norm uses its running statistics.
        train: ``(params, inputs, key) -> outputs``, in training; the key, a whole number of shape
            (), determines what is dropped. None if it does what ``apply`` does.
        noisy: Whether ``train`` needs a key.
        together: ``(params (c, ...), inputs (c, k, ...)) -> outputs (c, k, ...)``: ``train`` of c
            networks, faster than by ``vmap``; None if there is no such way.
        statistics: ``(params, inputs, [key]) -> statistics``: running statistics after ``train``
            of these; None if the network keeps none.
        statistics_together: The same of c networks at once, as ``together``.
        features: ``(params, inputs (k, ...)) -> (k, width)``: the inputs of the first dense layer;
            None if these are the flattened inputs, or there are no dense layers.
        dense_layers: Number of dense layers, with ReLU in between, at the network's end, called
            ``dense0`` and so on; 0 if it does not end so.
        activations: Number of activations for one example.
        parameters: Number of parameters.
        frozen: Bytes of frozen parameters, which are no parameters here.
        least_rows: Rows that a batch must have in training, at least; 2 with batch norm.
        running: Names of running statistics, which are no parameters, though among ``init``'s.
        tokens: For each input that goes to an embedding, how many tokens this has; None for other
            inputs, or if there are no such inputs.
        vectorizes: Whether ``torch.func.vmap`` can run it.
        unreached: Names of parameters that never have a gradient, if it ``vectorizes``.
        personal: Names of parameters that each client keeps to itself.
        names: What a module calls its parameters, where they have other names here.
        represent: ``(params, inputs, key, shift, training) -> (outputs, z (k, width))``: what
            ``train`` or ``apply`` gives if the last layer that has parameters takes
            ``moved(z, shift)`` in place of its input z, the representation, and z. None where that
            layer does not take one vector for each row, once.
        width: Numbers in a representation; 0 if there is none.
        drawn: Whether those of other seeds may hold other constants.
        module: ``params -> module``, a plain module that computes what ``apply`` does with these
            parameters, and holds them; None if there is none.
    """

    init: Callable[[Generator], Params]
    apply: Callable[[Params, Inputs], Outputs]
    features: Callable[[Params, Tensor], Tensor] | None
    dense_layers: int
    activations: int
    parameters: int
    train: Callable[[Params, Inputs, Tensor | None], Outputs] | None = None
    noisy: bool = False
    together: Callable[[Params, Tensor], Outputs] | None = None
    statistics: Callable[..., Params] | None = None
    statistics_together: Callable[[Params, Tensor], Params] | None = None
    least_rows: int = 1
    running: frozenset[str] = frozenset()
    tokens: Any = None
    vectorizes: bool = True
    unreached: frozenset[str] = frozenset()
    personal: frozenset[str] = frozenset()
    names: dict[str, str] = {}  # noqa: RUF012 - a NamedTuple's default, which nobody changes
    represent: Callable[..., tuple[Outputs, Tensor]] | None = None
    width: int = 0
    drawn: bool = False
    module: Callable[[Params], nn.Module] | None = None
    frozen: int = 0


def moved(z: Tensor, shift: Tensor | None) -> Tensor:
    """Returns representations z (k, width) as a network's last layer takes them.

    Args:
        z: The representations.
        shift: Shape (width,): it is added. Shape (2, width): they are multiplied by its first row,
            its second is added, and what is negative becomes 0. None: they stay as they are.
    """
    if shift is None:
        return z
    return z + shift if shift.ndim == 1 else (z * shift[0] + shift[1]).relu()


def called(module: nn.Module, inputs: Inputs) -> Outputs:
    """Calls a module: with inputs by name if they are a dictionary, in order if a tuple."""
    args, named = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    found = module(*(args if isinstance(args, tuple) else (args,)), **named)
    # Models of transformers return a dictionary with attributes, caches among them.
    special = isinstance(found, dict) and hasattr(found, "logits")
    outputs: Outputs = found.logits if special else found
    return outputs


def copied(module: nn.Module) -> nn.Module:
    """Copies a module but for its frozen parameters; refuses hooks, which a copy would lack."""
    hooked = any(x._backward_hooks or x._post_accumulate_grad_hooks for x in module.parameters())
    what = f"gradients of {type(module).__name__}"
    require(not hooked, what, "hooks on parameters", "those of its functions (no hooks)")
    # Of adapters that are switched off, which may be switched on, copies are needed.
    named = ((x, name) for name, x in module.named_parameters())
    return copy.deepcopy(
        module, {id(x): x for x, name in named if not x.requires_grad and ".lora_" not in name}
    )


def matching(
    model: Model, names: Iterable[str], patterns: Mapping[str, float], key: str
) -> dict[str, float]:
    """Returns the number of the first matching pattern for each parameter.

    Raises:
        ValueError: If a pattern matches nothing; ``key`` is what has it.
    """
    called = {name: model.names.get(name, name) for name in names}
    for pattern in patterns:
        if not any(fnmatchcase(theirs, pattern) for theirs in called.values()):
            some = ", ".join(list(called.values())[:4])
            raise ValueError(must(key, pattern, f"patterns of parameters, such as {some}"))
    found = dict[str, float]()
    for name, theirs in called.items():
        fits = [value for pattern, value in patterns.items() if fnmatchcase(theirs, pattern)]
        found |= {name: fits[0]} if fits else {}
    return found


def with_personal(model: Model, names: Iterable[str], *, personal: str, running: bool) -> Model:
    """Returns the network with personal parameters.

    Args:
        model: The network.
        names: Of its parameters.
        personal: Patterns of names, with commas, such as ``head.*``: whatever matches one is
            personal; after a ``!``, whatever matches none.
        running: Whether running statistics are personal, too.

    Raises:
        ValueError: If a pattern matches nothing, or nothing is left to share.
    """
    called = {name: model.names.get(name, name) for name in names}
    found = set(model.running) if running else set()
    text = personal.removeprefix("!")
    if patterns := [pattern.strip() for pattern in text.split(",") if pattern.strip()]:
        matched = matching(model, called, dict.fromkeys(patterns, 0.0), "personal").keys()
        found |= matched if text == personal else called.keys() - matched
    if not called.keys() - found - model.running:
        expected = "less than all parameters: clients learn some together (in local, none)"
        raise ValueError(must("personal", personal, expected))
    return model._replace(personal=frozenset(found))


def personal_patterns(personal: str, adapters: Adapters) -> str:
    """Returns patterns of personal parameters, with commas: given ones, and those of adapters.

    Raises:
        ValueError: If the given ones are of shared parameters.
    """
    own = _ADAPTERS.get(adapters, "")
    expected = f"patterns without ! where adapters is {adapters}"
    require(not own or not personal.startswith("!"), "personal", personal, expected)
    return ",".join(filter(None, (personal, own)))


def network_of(model: Model, initial: Params, draw: Callable[[], Params]) -> Network:
    """Converts a model to the network of a method's ``Context``."""

    def represent(
        params: Params, batch: Batch, shift: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        x, _, *key = batch
        assert model.represent is not None  # for mypy: a network with a width has it
        found: tuple[Tensor, Tensor] = model.represent(params, x, *(key or [None]), shift, True)
        return found

    @cache
    def draws(count: int) -> Sequence[Params]:
        starts = [initial, *(draw() for _ in range(count - 1))]
        for other in starts[1:]:
            if all(leaf.equal(other[name]) for name, leaf in initial.items()):
                expected = "model must be one whose start is drawn"
                raise ValueError(f"{expected}, got one that always starts alike")
        return starts

    layers: dict[str, set[str]] = {}
    for name in initial:
        layers.setdefault(name.rpartition(".")[0], set()).add(name)
    return Network(
        initial=initial,
        represent=represent,
        width=model.width if model.represent is not None else 0,
        layers=tuple(map(frozenset, layers.values())),
        running=model.running,
        personal=model.personal,
        draws=draws,
    )
