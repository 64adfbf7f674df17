"""Any ``torch.nn.Module`` as a network: a function of a parameter dictionary."""

import copy
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from engram.checks import require
from engram.models.base import Inputs, Model, Outputs
from engram.models.functional import NORMS, Pure, Statistics, decomposes
from engram.models.grouped import Images, Rows
from engram.types import Params

__all__ = ["Make", "from_module"]

Make = nn.Module | Callable[[], nn.Module]
"""A module, whose parameters are where every run starts, or what makes one: a class, a function."""

_PLAIN: Final = (nn.Linear, nn.ReLU)


def from_module(
    make: Make,
    example: Inputs,
    *,
    generator: Generator | None = None,
    statistics: Statistics = "average",
) -> Model:
    """Makes a network of a module.

    Parameters that require no gradient, and buffers other than running statistics, are constants:
    they are no parameters here. Parameters that are shared between
    layers have one name. Dropout depends on a key. A ``Sequential`` that ends in ``Linear`` layers
    with ``ReLU`` in between has dense layers, which are called ``dense0.weight`` and so on.

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
    module = _made(make, generator or torch.Generator())
    _try(module, example)  # lazy layers take their shapes from it
    free = {id(p) for p in module.parameters() if p.requires_grad}
    require(bool(free), "a network", type(module).__name__, "one with parameters that are trained")
    running = {} if statistics == "fixed" else _running(module)
    skeleton = _Skeleton(module, example, running, fixed=statistics == "fixed")

    grouped = skeleton.can_group(example)

    def init(generator: Generator) -> Params:
        fresh = module if isinstance(make, nn.Module) else _made(make, generator)
        _try(fresh, example)
        return _parameters(fresh, running)

    model = Model(
        init,
        skeleton.apply,
        None,
        dense_layers=0,
        activations=_activations(module, example),
        parameters=sum(leaf.numel() for leaf in _parameters(module, running).values()),
        train=skeleton.train,
        noisy=skeleton.noisy,
        together=skeleton.together if grouped else None,
        statistics_together=skeleton.statistics_together if grouped and running else None,
        statistics=skeleton.statistics if running else None,
        vectorizes=skeleton.vectorizes(example),
        least_rows=skeleton.least_rows(example),
        running=frozenset(running),
        tokens=skeleton.tokens,
        represent=skeleton.represent if skeleton.width else None,
        width=skeleton.width,
    )
    _check_pure(model, example)
    return (_with_dense_layers(model, module, example) if model.vectorizes else None) or model


def _made(make: Make, generator: Generator) -> nn.Module:
    if isinstance(make, nn.Module):
        return make
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make()
    require(isinstance(made, nn.Module), "a network", type(made).__name__, "a torch.nn.Module")
    return made


def _try(module: nn.Module, example: Inputs) -> None:
    """Calls a module once."""
    training = module.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            _call(module.eval(), example)
    except Exception as error:  # it may be anybody's, and raise anything
        shapes = tree_map(lambda leaf: tuple(leaf.shape), example)
        raise ValueError(
            f"{type(module).__name__} must take inputs of shapes {shapes}, got "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        module.train(training)


def _call(module: nn.Module, inputs: Inputs) -> Outputs:
    args, named = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    found = module(*(args if isinstance(args, tuple) else (args,)), **named)
    # Models of transformers return a dictionary with attributes, caches among them.
    special = isinstance(found, dict) and hasattr(found, "logits")
    outputs: Outputs = found.logits if special else found
    return outputs


def _running(module: nn.Module) -> dict[str, str]:
    """Returns the names of batch norm's running statistics."""
    return {
        f"{name}.{kind}" if name else kind: kind
        for name, part in module.named_modules()
        if isinstance(part, NORMS) and part.running_mean is not None
        for kind in ("running_mean", "running_var")
    }


def _parameters(module: nn.Module, running: dict[str, str]) -> Params:
    found: Params = {n: leaf for n, leaf in module.named_parameters() if leaf.requires_grad}
    found |= {name: leaf for name, leaf in module.named_buffers() if name in running}
    return {name: leaf.detach().clone().cpu() for name, leaf in found.items()}


class _Skeleton:
    """A module twice, for training and for evaluation, that is called with other parameters."""

    def __init__(
        self, module: nn.Module, example: Inputs, running: dict[str, str], *, fixed: bool
    ) -> None:
        constants = [*module.parameters(), *module.buffers()]
        memo = {id(tensor): tensor for tensor in constants}  # they are not copied
        self._modes = [copy.deepcopy(module, dict(memo)).train(mode) for mode in (False, True)]
        for part in self._modes[1].modules():
            if isinstance(part, NORMS):
                part.num_batches_tracked = None  # it would be counted up, in place
        self._start = params = _parameters(module, running)
        self._places = [_places(mode, params) for mode in self._modes]
        self._last: tuple[Any, ...] = (
            None,
            None,
            (),
            {},
        )  # training pass: of what, and what it saw
        self._running, self._fixed, self._turn = list(running), fixed, threading.Lock()
        self._tap = threading.local()  # whether, and with what shift, the head's input is asked for
        last = next((name for name in reversed(params) if name not in running), "")
        for mode in self._modes:
            mode.get_submodule(last.rpartition(".")[0]).register_forward_pre_hook(self._tapped)
        # What a forward pass calls, it says itself.
        example = tree_map(lambda leaf: leaf.contiguous(), example)
        with torch.no_grad(), Pure(torch.zeros((), dtype=torch.int64)) as seen:
            _, taken = self._tapping(None, lambda: self._run(1, params, example))
        shapes = [leaf.shape if isinstance(leaf, Tensor) else () for leaf in taken]
        vectors = [shape for shape in shapes if len(shape) == 2 and shape[0] == _rows(example)]
        self.width: int = vectors[0][1] if len(shapes) == len(vectors) == 1 and "." in last else 0
        whole = {(leaf.data_ptr(), leaf.numel()): size for leaf, size in seen.embedded}
        self.tokens = tree_map(lambda leaf: whole.get((leaf.data_ptr(), leaf.numel())), example)
        self.noisy = seen.drawn > 0
        self._pure = self.noisy or bool(running) or fixed or seen.pooled

    def _run(self, mode: int, params: Params, inputs: Inputs) -> Outputs:
        places = self._places[mode]
        with self._turn:
            for name, slots in places.items():
                for holder, at in slots:
                    holder[at] = params[name]
            try:
                return _call(self._modes[mode], inputs)
            finally:
                for slots in places.values():
                    for holder, at in slots:
                        holder[at] = None  # whose graph is not kept

    def _tapped(self, head: nn.Module, args: tuple[Any, ...]) -> Any:
        """Is called before the last layer that has parameters; see ``Model.represent``."""
        del head
        taken = getattr(self._tap, "taken", None)
        if taken is None:
            return None
        taken.extend(args or [None])
        shift = self._tap.shift
        return None if shift is None else (args[0] + shift, *args[1:])

    def _tapping(
        self, shift: Tensor | None, forward: Callable[[], Outputs]
    ) -> tuple[Outputs, list[Any]]:
        """Returns a forward pass's outputs, and what its last layer takes before it is shifted."""
        taken: list[Any] = []
        self._tap.taken, self._tap.shift = taken, shift
        try:
            return forward(), taken
        finally:
            del self._tap.taken, self._tap.shift

    def represent(
        self,
        params: Params,
        inputs: Inputs,
        key: Tensor | None = None,
        shift: Tensor | None = None,
        training: bool = False,
    ) -> tuple[Outputs, Tensor]:
        def forward() -> Outputs:
            return self.train(params, inputs, key) if training else self.apply(params, inputs)

        outputs, (z,) = self._tapping(shift, forward)
        return outputs, z

    def least_rows(self, example: Inputs) -> int:
        """Returns how many rows a batch needs in training: one may be too few to normalize by."""
        params = {name: leaf.detach() for name, leaf in self._start.items()}
        one = tree_map(lambda leaf: leaf[:1], example)
        try:
            with torch.no_grad():
                self.train(params, one, torch.zeros((), dtype=torch.int64))
        except ValueError:
            return 2
        return 1

    def vectorizes(self, example: Inputs) -> bool:
        """Returns whether ``vmap`` can run it: it cannot if a value decides what is computed."""

        def one(leaf: Tensor) -> Tensor:
            return leaf.detach()[None]

        key = torch.zeros(1, dtype=torch.int64)
        try:
            with torch.no_grad():
                for forward, *rest in ((self.train, key), (self.apply,)):
                    vmap(forward)(tree_map(one, self._start), tree_map(one, example), *rest)
        except RuntimeError:
            return False
        return True

    def apply(self, params: Params, inputs: Inputs) -> Outputs:
        if not decomposes() and not self._running:
            return self._run(0, params, inputs)
        with Pure(None):
            return self._run(0, params, inputs)

    def train(self, params: Params, inputs: Inputs, key: Tensor | None) -> Outputs:
        if not decomposes() and not self._pure:
            return self._run(1, params, inputs)
        if decomposes() or not self._running:
            with Pure(key, fixed=self._fixed):
                return self._run(1, params, inputs)
        with Pure(key, names=self._names(params)) as pass_:
            outputs = self._run(1, params, inputs)
        self._last = inputs, key, _addresses(params), pass_.statistics
        return outputs

    def together(self, params: Params, inputs: Tensor) -> Tensor:
        """Calls many networks at once; see ``engram.models.grouped``."""
        with Pure(None, fixed=self._fixed):
            found = self._run(1, params, Images.of(inputs))
        if not isinstance(found, Rows):
            raise NotImplementedError("outputs that are no rows")
        return found.x

    def can_group(self, example: Inputs) -> bool:
        """Returns whether ``together`` has a rule for all that the module does, and it is right."""
        image = isinstance(example, Tensor) and example.ndim == 4 and example.is_floating_point()
        if not image or self.noisy:
            return False
        ours = {name: torch.stack([leaf, 0.9 * leaf]) for name, leaf in self._start.items()}
        inputs = torch.stack([example, example.flip(0)])
        try:
            with torch.no_grad():
                found = self.together(ours, inputs)
                alone = [
                    self.train({name: leaf[i] for name, leaf in ours.items()}, inputs[i], None)
                    for i in range(2)
                ]
        except Exception:  # of what has no rule; it may be anything that a module does with it
            return False
        return bool(torch.allclose(found, torch.stack(alone), rtol=1e-3, atol=1e-4))

    def statistics(self, params: Params, inputs: Inputs, key: Tensor | None = None) -> Params:
        if not decomposes():
            # A gradient has been taken there, if the rule takes it at the model itself. Whoever
            # calls holds on to the model and the batch: what is new is elsewhere in memory.
            seen, its_key, addresses, found = self._last
            if seen is inputs and its_key is key and addresses == _addresses(params):
                return {name: leaf.detach() for name, leaf in found.items()}
        with torch.no_grad(), Pure(key, names=self._names(params)) as pass_:
            self._run(1, params, inputs)
        return {**pass_.statistics}

    def statistics_together(self, params: Params, inputs: Tensor) -> Params:
        """Returns the running statistics of many networks at once."""
        with torch.no_grad(), Pure(None, names=self._names(params)) as pass_:
            self._run(1, params, Images.of(inputs))
        return {**pass_.statistics}

    def _names(self, params: Params) -> dict[int, str]:
        return {id(params[name]): name for name in self._running}


def _rows(inputs: Inputs) -> int:
    return len(tree_leaves(inputs)[0])


def _addresses(params: Params) -> list[int]:
    return [leaf.data_ptr() for leaf in params.values()]


_Slot = tuple[Any, Any]  # a dictionary or a list, and where in it a tensor stands


def _places(module: nn.Module, params: Params) -> dict[str, list[_Slot]]:
    """Finds where a module holds each parameter: in several places, if layers share it.

    Writing there takes a tenth of the time of ``torch.func.functional_call``.
    """
    names = {id(leaf): n for n, leaf in [*module.named_parameters(), *module.named_buffers()]}
    found: dict[str, list[_Slot]] = {name: [] for name in params}
    for part in module.modules():
        for holder in (part._parameters, part._buffers):
            for at, leaf in holder.items():
                if leaf is not None and names.get(id(leaf)) in found:
                    found[names[id(leaf)]].append((holder, at))
        if isinstance(part, nn.RNNBase):  # which has a list of its own of them
            flat = part._flat_weights
            for i, leaf in enumerate(flat):
                if names.get(id(leaf)) in found:
                    found[names[id(leaf)]].append((flat, i))
    return found


def _activations(module: nn.Module, example: Inputs) -> int:
    """Counts the outputs of a module's layers, for one row."""
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
    return max(1, count // _rows(example))


def _check_pure(model: Model, example: Inputs) -> None:
    """Calls a network twice with the same arguments.

    Raises:
        ValueError: If it gives different outputs.
    """
    params = model.init(torch.Generator())
    key = torch.zeros((), dtype=torch.int64)
    assert model.train is not None  # for mypy: ours has it
    before = torch.get_rng_state()
    try:
        one, other = (
            tree_leaves(model.train(params, example, key))
            + tree_leaves(model.apply(params, example))
            for _ in range(2)
        )
    finally:
        torch.set_rng_state(before)
    pairs = zip(one, other, strict=True)  # NaN, such as of a mask that leaves nothing, is alike
    same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
    require(
        same,
        "a network's outputs",
        "others for the same inputs",
        "a function of its inputs and parameters (numbers are drawn by dropout alone)",
    )


# --- Dense layers --------------------------------------------------------------------------------


class _Tail(NamedTuple):
    """A Sequential, parted before its last Linear layers with ReLU in between."""

    start: int
    linear: list[int]


def _tail(module: nn.Module) -> _Tail | None:
    if type(module) is not nn.Sequential:
        return None
    parts = list(module)
    start = len(parts)
    while start and type(parts[start - 1]) in _PLAIN:
        start -= 1
    linear = [i for i in range(start, len(parts)) if type(parts[i]) is nn.Linear]
    if not linear or linear[-1] != len(parts) - 1:
        return None
    between = all(b - a == 2 for a, b in pairwise(linear))  # exactly one ReLU
    whole = all(
        parts[i].bias is not None and all(p.requires_grad for p in parts[i].parameters())
        for i in linear
    )
    names = {name for name, _ in module.named_parameters()}
    own = {f"{i}.{kind}" for i in linear for kind in ("weight", "bias")}
    return _Tail(linear[0], linear) if between and whole and own <= names else None


def _with_dense_layers(model: Model, module: nn.Module, example: Inputs) -> Model | None:
    """Returns the same network with its last layers as dense ones, if it ends in some."""
    tail = _tail(module)
    if tail is None or model.noisy or model.statistics is not None:
        return None
    own = {
        f"{i}.{kind}": f"dense{layer}.{kind}"
        for layer, i in enumerate(tail.linear)
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

    before = module[: tail.start]  # type: ignore[index]  # a Sequential, as _tail has found
    features = None
    if any(not isinstance(part, nn.Flatten) for part in before):
        head = _Skeleton(before, example, {}, fixed=False)
        names = [name for name, leaf in before.named_parameters() if leaf.requires_grad]

        def features(params: Params, inputs: Tensor) -> Tensor:
            found: Tensor = head.apply({name: params[name] for name in names}, inputs)
            return found.flatten(1)

    return model._replace(
        init=init,
        apply=named(model.apply),
        train=None,
        together=named(model.together),
        represent=named(model.represent),
        features=features,
        dense_layers=len(tail.linear),
        names=theirs,
    )
