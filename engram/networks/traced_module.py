"""A module as pure functions of a parameter dictionary, and its properties."""

import copy
import threading
from collections.abc import Callable, Container, Iterator, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from engram.core.types import Params
from engram.networks.base import Inputs, Outputs, called, moved
from engram.networks.functional import NORMS, Pure, decomposes
from engram.networks.grouped import Features, Images


class Skeleton:
    """A module twice, for training and for evaluation, that is called with other parameters."""

    def __init__(
        self, module: nn.Module, example: Inputs, running: Set[str], *, fixed: bool
    ) -> None:
        constants = [*module.parameters(), *module.buffers()]
        memo = {id(tensor): tensor for tensor in constants}  # they are not copied
        self._modes = [copy.deepcopy(module, dict(memo)).train(mode) for mode in (False, True)]
        for part in self._modes[1].modules():
            if isinstance(part, NORMS):
                part.num_batches_tracked = None  # it would be counted up, in place
        self.start = params = parameters_of(module, running)
        self._places = [_places(mode, params) for mode in self._modes]
        self._last: tuple[Any, ...] = ()  # training pass: of what, and what came of it
        self.running, self.fixed, self._turn = running, fixed, threading.Lock()
        self._tap = threading.local()  # whether, and with what shift, the head's input is asked for
        last = next((name for name in reversed(params) if name not in running), "")
        for mode in self._modes:
            mode.get_submodule(last.rpartition(".")[0]).register_forward_pre_hook(self._tapped)
        # What a forward pass calls, it says itself.
        with torch.no_grad(), Pure(torch.zeros((), dtype=torch.int64)) as seen:
            _, taken = self._tapping(None, lambda: self._run(1, params, example))
        shapes = [leaf.shape if isinstance(leaf, Tensor) else () for leaf in taken]
        vectors = [shape for shape in shapes if len(shape) == 2 and shape[0] == rows_of(example)]
        self.width: int = vectors[0][1] if len(shapes) == len(vectors) == 1 and "." in last else 0
        whole = {(leaf.data_ptr(), leaf.numel()): size for leaf, size in seen.embedded}
        self.tokens = tree_map(lambda leaf: whole.get((leaf.data_ptr(), leaf.numel())), example)
        self.noisy = seen.drawn > 0
        self._views = seen.viewed
        self._pure = self.noisy or bool(running) or fixed or seen.pooled or self._views

    def _run(self, mode: int, params: Params, inputs: Inputs) -> Outputs:
        places = self._places[mode]
        with self._turn:
            for name, slots in places.items():
                for holder, at in slots:
                    holder[at] = params[name]
            try:
                return called(self._modes[mode], inputs)
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
        return None if shift is None else (moved(args[0], shift), *args[1:])

    def _tapping(
        self, shift: Tensor | None, forward: Callable[[], Outputs]
    ) -> tuple[Outputs, list[Any]]:
        """Returns a forward pass's outputs, and its last layer's unshifted input."""
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
        """Returns outputs and representations; see ``Model.represent``."""

        def forward() -> Outputs:
            return self.train(params, inputs, key) if training else self.apply(params, inputs)

        outputs, (z,) = self._tapping(shift, forward)
        return outputs, z

    def changed(self, module: nn.Module, buffers: Params) -> list[str]:
        """Returns names of a module's buffers and parameters that passes have changed.

        Args:
            module: As given; its buffers are set back, which it shares with this.
            buffers: Copies of them from before the passes.
        """
        start = parameters_of(module, self.running)
        found = [name for name, leaf in self.start.items() if not same(leaf, start[name])]
        for each in (*self._modes, module):
            for name, leaf in each.named_buffers():
                if name not in buffers or not same(leaf, buffers[name]):
                    found.append(name)
        for name, leaf in module.named_buffers():
            leaf.copy_(buffers[name])
        return list(dict.fromkeys(found))

    def least_rows(self, example: Inputs) -> int:
        """Returns the least rows of a batch in training: 2 with batch norm, else 1."""
        params = {name: leaf.detach() for name, leaf in self.start.items()}
        one = tree_map(lambda leaf: leaf[:1], example)
        try:
            with torch.no_grad():
                self.train(params, one, torch.zeros((), dtype=torch.int64))
        except ValueError:
            return 2
        return 1

    def apply(self, params: Params, inputs: Inputs) -> Outputs:
        """Calls the module in evaluation; see ``Model.apply``."""
        if not decomposes() and not self.running and not self._views:
            return self._run(0, params, inputs)
        with Pure(None):
            return self._run(0, params, inputs)

    def train(self, params: Params, inputs: Inputs, key: Tensor | None) -> Outputs:
        """Calls the module in training; see ``Model.train``."""
        if not decomposes() and not self._pure:
            return self._run(1, params, inputs)
        if decomposes() or not self.running:
            with Pure(key, fixed=self.fixed):
                return self._run(1, params, inputs)
        with Pure(key, names=self._names(params)) as pass_:
            outputs = self._run(1, params, inputs)
        self._last = inputs, key, _addresses_of(params), pass_.statistics
        return outputs

    def together(self, params: Params, inputs: Tensor) -> Tensor:
        """Calls many networks at once; see ``engram.networks.grouped``."""
        with Pure(None, fixed=self.fixed):
            found = self._run(1, params, Images.of(inputs))
        if not isinstance(found, Features):
            raise NotImplementedError("outputs that are no rows")
        return found.x

    def can_group(self, example: Inputs) -> bool:
        """Whether ``together`` has a rule for all layers of the module, and is right."""
        image = isinstance(example, Tensor) and example.ndim == 4 and example.is_floating_point()
        if not image or self.noisy:
            return False
        ours = {name: torch.stack([leaf, 0.9 * leaf]) for name, leaf in self.start.items()}
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
        """Returns the running statistics after a pass in training; see ``Model.statistics``."""
        # A gradient has been taken there, if the rule takes it at the model itself. Whoever asks
        # holds on to the model and the batch: what is new is elsewhere in memory.
        last = self._last and (self._last[0] is inputs and self._last[1] is key)
        if not decomposes() and last and self._last[2] == _addresses_of(params):
            return {name: leaf.detach() for name, leaf in self._last[3].items()}
        with torch.no_grad(), Pure(key, names=self._names(params)) as pass_:
            self._run(1, params, inputs)
        found: Params = pass_.statistics
        return found

    def statistics_together(self, params: Params, inputs: Tensor) -> Params:
        """Returns the running statistics of many networks at once."""
        return self.statistics(params, Images.of(inputs))

    def _names(self, params: Params) -> dict[int, str]:
        return {id(params[name]): name for name in self.running}


def parameters_of(module: nn.Module, running: Container[str]) -> Params:
    """Returns a copy of a module's parameters that are trained, and of its running statistics."""
    return {n: x.detach().float().clone().cpu() for n, x in leaves(module, running)}


def leaves(module: nn.Module, running: Container[str]) -> Iterator[tuple[str, Tensor]]:
    """Yields a module's parameters that are trained, and its running statistics, by name.

    A parameter that several layers share is the last one's, in whose place it stands.
    """
    last: dict[int, tuple[str, Tensor]] = {}
    for name, leaf in module.named_parameters(remove_duplicate=False):
        last.pop(id(leaf), None)
        if leaf.requires_grad:
            last[id(leaf)] = name, leaf
    yield from last.values()
    yield from ((name, leaf) for name, leaf in module.named_buffers() if name in running)


def same(one: Tensor, other: Tensor) -> bool:
    """Returns whether two arrays are alike; NaN, such as of a mask that leaves nothing, is."""
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def rows_of(inputs: Inputs) -> int:
    """Returns the number of rows."""
    return len(tree_leaves(inputs)[0])


def tensors_of(outputs: Outputs) -> list[Tensor]:
    """Returns the tensors in outputs."""
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _addresses_of(params: Params) -> list[int]:
    return [leaf.data_ptr() for leaf in params.values()]


_Slot = tuple[Any, Any]  # a dictionary or a list, and where in it a tensor stands


def _places(module: nn.Module, params: Params) -> dict[str, list[_Slot]]:
    """Finds where a module holds each parameter: in several places, if layers share it.

    Writing there takes a tenth of the time of ``torch.func.functional_call``.
    """
    names = {id(leaf): name for name, leaf in leaves(module, params)}
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
