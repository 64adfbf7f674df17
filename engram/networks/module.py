"""Any ``torch.nn.Module`` as a network: a function of a parameter dictionary."""

import copy
from collections.abc import Callable, Iterator, MutableMapping, Set
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from engram.core.checks import require
from engram.core.process_modes import drawing
from engram.core.types import Params
from engram.networks.agreement import agreement
from engram.networks.base import VARIANCE, Inputs, Model, Statistics, UnknownToken, called
from engram.networks.functional import NORMS, Pure
from engram.networks.traced_module import Skeleton, leaves, parameters_of, rows_of, same

Make = nn.Module | Callable[[], nn.Module]
"""A module, whose parameters are where every run starts, or what makes one: a class, a function."""

_PLAIN: Final = (nn.Linear, nn.ReLU)
_CONSTANTS: Final[MutableMapping[Tensor, str]] = WeakTensorKeyDictionary()  # frozen, in use


def from_module(
    make: Make,
    example: Inputs,
    *,
    generator: Generator | None = None,
    statistics: Statistics = "average",
) -> Model:
    """Makes a network of a module.

    Parameters that require no gradient, and buffers other than running statistics, are constants:
    they are no parameters here. Parameters that are shared between layers have one name. Dropout
    depends on a key. A ``Sequential`` that ends in ``Linear`` layers with ``ReLU`` in between has
    dense layers, which are called ``dense0.weight`` and so on.

    Args:
        make: The module, or what makes it.
        example: Inputs of two rows or more, such as the module will see: a tensor; a tuple of
            tensors, which are its arguments in order; or a dictionary of them, by name.
        generator: Draws the constants, if the module draws some.
        statistics: What batch norm's running statistics are: ``average`` and ``local`` ones
            follow the rows that a client trains on; ``fixed`` ones stay, and are used in training,
            too.

    Raises:
        ValueError: If the module does not take the example, or its outputs are not a function of
            its inputs and parameters; the message says which.
    """
    seed = _seed(make, generator or torch.Generator())
    with drawing(seed):  # by one thread alone, which tries what others may have been given, too
        return _network(make, seed, example, statistics)


def _network(make: Make, seed: int, example: Inputs, statistics: Statistics) -> Model:
    example = tree_map(lambda leaf: leaf.detach().clone(), example)
    module = _made(make, example)
    running = frozenset[str]() if statistics == "fixed" else _running(module)
    trained, kind = any(n not in running for n, _ in leaves(module, running)), type(module).__name__
    require(trained, "a network", kind, "one with parameters that are trained")
    skeleton = _pure(module, example, running, fixed=statistics == "fixed")
    vectorizes, unreached = agreement(module, skeleton, example)
    grouped, width = skeleton.can_group(example), skeleton.width

    def init(generator: Generator) -> Params:
        own = _seed(make, generator)
        if own == seed:  # such as a run's own start, which is asked for again
            return parameters_of(module, running)
        with drawing(own):
            return parameters_of(_made(make, example), running)

    def holding(params: Params) -> nn.Module:
        with drawing():  # while no other thread tries the module
            found = copy.deepcopy(module).eval()
        found.load_state_dict(params, strict=False)  # its constants are there
        return found

    model = Model(
        init,
        skeleton.apply,
        None,
        dense_layers=0,
        activations=_activations(module, example),
        parameters=sum(leaf.numel() for leaf in skeleton.start.values()),
        train=skeleton.train,
        noisy=skeleton.noisy,
        together=skeleton.together if grouped else None,
        statistics_together=skeleton.statistics_together if grouped and running else None,
        statistics=skeleton.statistics if running else None,
        vectorizes=vectorizes,
        unreached=unreached,
        least_rows=skeleton.least_rows(example),
        running=running,
        tokens=skeleton.tokens,
        represent=skeleton.represent if width else None,
        width=width,
        drawn=not isinstance(make, nn.Module),
        module=holding,
        frozen=sum(leaf.nbytes for leaf in module.parameters() if not leaf.requires_grad),
    )
    return (_with_dense_layers(model, module, example) if model.vectorizes else None) or model


def _seed(make: Make, generator: Generator) -> int:
    """Draws the seed to make a module from; 0 if it is there already."""
    there = isinstance(make, nn.Module)
    return 0 if there else int(torch.randint(2**62, (), generator=generator))


def _made(make: Make, example: Inputs) -> nn.Module:
    made = make if isinstance(make, nn.Module) else _with_known_constants(make())
    require(isinstance(made, nn.Module), "a network", type(made).__name__, "a torch.nn.Module")
    for name, leaf in made.named_parameters():  # before a call blames something else
        fits = not leaf.requires_grad or leaf.dtype == torch.float32
        require(fits, name, str(leaf.dtype), "float32, for it is trained (module.float())")
    _try(made, example)
    return made


def _with_known_constants(made: nn.Module) -> nn.Module:
    """Replaces frozen parameters by equal ones of a module that is in use, if there is one."""
    in_use = {name: leaf for leaf, name in _CONSTANTS.items()}
    for place, part in made.named_modules() if isinstance(made, nn.Module) else ():
        for at, leaf in part._parameters.items():
            if leaf is not None and not leaf.requires_grad:
                name = f"{place}.{at}"
                known = in_use.get(name, leaf)
                kinds = {(x.dtype, x.device) for x in (known, leaf)}
                part._parameters[at] = known if len(kinds) == 1 and same(known, leaf) else leaf
                _CONSTANTS[part._parameters[at]] = name
    return made


@contextmanager
def _trying(module: nn.Module, example: Inputs) -> Iterator[None]:
    """Context in which a failing call of a module is told with its inputs' shapes.

    Raises:
        UnknownToken: An embedding lacks a token of the example.
        ValueError: All else.
    """
    try:
        with torch.no_grad():
            yield
    except UnknownToken:
        raise
    except Exception as error:  # it may be anybody's, and raise anything
        shapes = tree_map(lambda leaf: tuple(leaf.shape), example)
        raise ValueError(
            f"{type(module).__name__} must take inputs of shapes {shapes}, got "
            f"{type(error).__name__}: {error}"
        ) from error


def _try(module: nn.Module, example: Inputs) -> None:
    training = module.training
    try:
        with _trying(module, example), Pure(torch.zeros((), dtype=torch.int64)):
            called(module.eval(), example)
    finally:
        module.train(training)


def _running(module: nn.Module) -> frozenset[str]:
    found = set[str]()
    for name, part in module.named_modules():
        if isinstance(part, NORMS) and part.running_mean is not None:
            expected = "a number (None counts batches, which is a state of its own)"
            require(part.momentum is not None, f"momentum of {name}", None, expected)
            prefix = f"{name}." if name else ""
            found |= {f"{prefix}running_mean", prefix + VARIANCE}
    return frozenset(found)


def _activations(module: nn.Module, example: Inputs) -> int:
    count = 0

    def add(part: nn.Module, inputs: Any, outputs: Any) -> None:
        nonlocal count
        del part, inputs
        count += sum(leaf.numel() for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor))

    leaves = [part for part in module.modules() if not any(part.children())]
    handles = [part.register_forward_hook(add) for part in leaves]
    try:
        _try(module, example)
    finally:
        for handle in handles:
            handle.remove()
    return max(1, count // rows_of(example))


def _pure(module: nn.Module, example: Inputs, running: Set[str], *, fixed: bool) -> Skeleton:
    """Returns a module that is called twice with the same arguments, and gives the same.

    Raises:
        ValueError: It does not: it draws random numbers, or keeps a state from call to call.
    """
    key, params = torch.zeros((), dtype=torch.int64), parameters_of(module, running)
    buffers = {name: leaf.clone() for name, leaf in module.named_buffers()}
    given = [leaf.clone() for leaf in tree_leaves(example)]
    with _trying(module, example):
        skeleton = Skeleton(module, example, running, fixed=fixed)
        one, other = (
            tree_leaves(skeleton.train(params, example, key))
            + tree_leaves(skeleton.apply(params, example))
            for _ in range(2)
        )
        changed = skeleton.changed(module, buffers)
    kind = type(module).__name__
    kept = all(map(same, given, tree_leaves(example)))
    require(kept, f"inputs of {kind}", "others after a call", "left as they are")
    expected = "a function of its inputs and parameters (numbers are drawn by dropout alone)"
    state = f"others after each call, which changes {', '.join(changed[:3])}"
    require(not changed, f"outputs of {kind}", state, expected)
    alike = all(same(a, b) for a, b in zip(one, other, strict=True) if isinstance(a, Tensor))
    require(alike, f"outputs of {kind}", "others for the same inputs", expected)
    return skeleton


# --- Dense layers --------------------------------------------------------------------------------


def _tail(module: nn.Module) -> list[int]:
    """Returns the places of a Sequential's last Linear layers with ReLU in between."""
    if type(module) is not nn.Sequential:
        return []
    parts = list(module)
    start = len(parts)
    while start and type(parts[start - 1]) in _PLAIN:
        start -= 1
    linear = [i for i in range(start, len(parts)) if type(parts[i]) is nn.Linear]
    if not linear or linear[-1] != len(parts) - 1:
        return []
    between = all(b - a == 2 for a, b in pairwise(linear))  # exactly one ReLU
    whole = all(
        parts[i].bias is not None and all(p.requires_grad for p in parts[i].parameters())
        for i in linear
    )
    names = {name for name, _ in module.named_parameters()}
    own = {f"{i}.{kind}" for i in linear for kind in ("weight", "bias")}
    return linear if between and whole and own <= names else []


def _with_dense_layers(model: Model, module: nn.Module, example: Inputs) -> Model | None:
    tail = _tail(module)
    vectors = model.width > 0  # such as rows that are sequences lack, each step of which is one
    if not tail or not vectors or model.noisy or model.statistics is not None:
        return None
    own = {
        f"{i}.{kind}": f"dense{layer}.{kind}"
        for layer, i in enumerate(tail)
        for kind in ("weight", "bias")
    }
    theirs = {ours: name for name, ours in own.items()}

    def init(generator: Generator) -> Params:
        return {own.get(name, name): leaf for name, leaf in model.init(generator).items()}

    def named(function: Callable[..., Any] | None) -> Any:
        def call(params: Params, *given: Any) -> Any:
            assert function is not None  # for mypy: it is asked for below
            return function({theirs.get(name, name): x for name, x in params.items()}, *given)

        return function and call

    before = module[: tail[0]]  # type: ignore[index]  # a Sequential, as _tail has found
    features = None
    if any(not isinstance(part, nn.Flatten) for part in before):
        head = Skeleton(before, example, frozenset(), fixed=False)
        names = [name for name, _ in leaves(before, ())]

        def features(params: Params, inputs: Tensor) -> Tensor:
            found: Tensor = head.apply({name: params[name] for name in names}, inputs)
            return found.flatten(1)

    return model._replace(
        init=init,
        apply=named(model.apply),
        train=None,
        together=named(model.together),
        represent=named(model.represent),
        module=named(model.module),
        features=features,
        dense_layers=len(tail),
        names=theirs,
        unreached=frozenset(own.get(name, name) for name in model.unreached),
    )
