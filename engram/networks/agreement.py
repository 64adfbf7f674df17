"""Passes of a module as the engines take them, compared with those that torch takes."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import grad, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from engram.core.checks import require
from engram.core.process_modes import drawing
from engram.core.types import Params
from engram.networks.base import Inputs, Outputs, called, copied
from engram.networks.functional import NORMS, Pure
from engram.networks.traced_module import (
    Skeleton,
    addresses_of,
    in_single,
    leaves,
    repeats,
    same,
    tensors_of,
)

Draws = Callable[[Tensor], AbstractContextManager[Any]]
"""``key -> context`` in which a pass in training draws."""


class Itself:
    """A module that takes passes itself, with parameters that are copied into its own.

    Gradients are what torch leaves in these: hooks act on them, what is checkpointed is computed
    again, and a parameter that a pass does not reach has none. They have no derivatives.

    Args:
        module: The module, which is copied.
        like: The same module as functions.
        draws: See ``Draws``.
    """

    def __init__(self, module: nn.Module, like: Skeleton, draws: Draws) -> None:
        self.module = copied(module)
        self._norms = [part for part in self.module.modules() if isinstance(part, NORMS)]
        for part in self._norms:
            part.num_batches_tracked = None
        self._fixed, self._noisy, self._draws = like.fixed, like.noisy, draws
        self.running, self.moved = like.running, like.running | like.renormed
        self.leaves = dict(leaves(self.module, self.running))
        self._last: tuple[Any, ...] = ()  # training pass: of what, and what came of it

    def apply(self, params: Params, inputs: Inputs) -> Outputs:
        """Calls the module in evaluation; see ``Model.apply``."""
        self._last = ()
        return self._pass(False, params, inputs, nullcontext())

    def train(self, params: Params, inputs: Inputs, key: Tensor | None) -> Outputs:
        """Calls the module in training; see ``Model.train``."""
        self._last = inputs, key, addresses_of(params)
        draws = self._draws(key) if self._noisy and key is not None else nullcontext()
        return self._pass(True, params, inputs, draws)

    def statistics(self, params: Params, inputs: Inputs, key: Tensor | None = None) -> Params:
        """Returns running statistics, and parameters that the pass itself changes, after it."""
        if not self.moved <= params.keys():  # a part of a network, which takes no pass
            return {}
        if not repeats(self._last, inputs, key, params):
            with torch.no_grad():
                self.train(params, inputs, key)
        return {name: self.leaves[name].detach().float().clone() for name in sorted(self.moved)}

    def _pass(
        self, training: bool, params: Params, inputs: Inputs, draws: AbstractContextManager[Any]
    ) -> Outputs:
        form: list[Any] = []

        def run(values: Sequence[Tensor]) -> list[Any]:
            if values[0].device != next(iter(self.leaves.values())).device:
                self.leaves = dict(leaves(self.module.to(values[0].device), self.running))
            with torch.no_grad():
                for leaf, value in zip(self.leaves.values(), values, strict=True):
                    leaf.copy_(value)
                    leaf.grad = None
            self.module.train(training)
            for part in self._norms if self._fixed else ():
                part.eval()
            with draws:
                found, its_form = tree_flatten(tree_map(in_single, called(self.module, inputs)))
            form.append(its_form)
            return found

        given = [params[name] for name in self.leaves]
        found = _Pass.apply(self, run, *given)  # type: ignore[no-untyped-call]  # torch's
        outputs: Outputs = tree_unflatten(list(found), form[0])
        return outputs


class _Pass(torch.autograd.Function):
    """A pass of a module, whose own graph is kept for its backward pass."""

    @staticmethod
    def forward(ctx: Any, itself: Itself, run: Callable[..., list[Any]], *values: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        with torch.set_grad_enabled(any(ctx.needs_input_grad)):
            ctx.outputs, ctx.itself = run(values), itself
        return tuple(x.detach() if isinstance(x, Tensor) else x for x in ctx.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        given = zip(ctx.outputs, gradients, strict=True)
        pairs = [(x, g) for x, g in given if g is not None and x.requires_grad]
        if pairs:
            with drawing():  # what is checkpointed draws again
                torch.autograd.backward([x for x, _ in pairs], [g for _, g in pairs])
        return None, None, *(leaf.grad for leaf in ctx.itself.leaves.values())


def agreement(
    module: nn.Module, skeleton: Skeleton, example: Inputs
) -> tuple[bool, Itself | None, frozenset[str]]:
    """Takes a forward and a backward pass of two batches, in training and in evaluation.

    Args:
        module: The module.
        skeleton: The same as functions.
        example: Two rows or more.

    Returns:
        Whether ``vmap`` of its functions takes torch's passes; the module, if only itself does; and
        names of parameters that never have a gradient, if ``vmap`` does.

    Raises:
        ValueError: If torch takes no backward pass, or a pass changes what it should not.
    """
    kind = type(module).__name__
    # Away from where it starts, which may be a point without a gradient.
    params = {
        name: x if name in skeleton.running else x + 0.01 * torch.randn_like(x)
        for name, x in skeleton.start.items()
    }
    rows = example, tree_map(lambda leaf: leaf.flip(0), example)
    before = [(leaf, leaf.grad) for leaf in module.parameters()]
    module.zero_grad()
    failure: Exception | None = None
    for draws in (partial(Pure, drawing=True), _drawing):  # what is checkpointed draws again
        plain = Itself(module, skeleton, draws)
        try:
            expected = _in_turn(plain, params, rows)
            break
        except Exception as error:  # a module may be anybody's
            failure = error
    else:
        said = f"{type(failure).__name__}: {failure}"
        raise ValueError(f"{kind} must take a backward pass, got {said}") from failure
    captured = [name for name, leaf in module.named_parameters() if leaf.grad is not None]
    for leaf, gradient in before:
        leaf.grad = gradient
    require(not captured, f"parameters that a copy of {kind} uses", captured, "its own alone")
    still = [(n, x) for n, x in params.items() if n not in plain.moved]
    changed = [n for n, x in still if not same(plain.leaves[n].float(), x)]
    require(not changed, f"parameters of {kind}", changed, "left as they are by a backward pass")
    hooked = any(x._backward_hooks or x._post_accumulate_grad_hooks for x, _ in before)
    alone = hooked or skeleton.renormed or draws is _drawing
    for way in () if alone else (_together, _in_turn):
        try:
            alike = _alike(way(skeleton, params, rows), expected)
        except Exception:  # of what has no rule; it may be anything that a module does
            continue
        if alike:
            static = way is _together  # no value decides what is computed
            missed = {name for name, leaf in plain.leaves.items() if leaf.grad is None}
            return static, None, frozenset(missed - skeleton.running if static else ())
    return False, Itself(module, skeleton, _drawing), frozenset()


def _drawing(key: Tensor) -> AbstractContextManager[None]:
    """Returns a context in which torch itself draws, by a key."""
    return drawing(int(key))


# --- Passes --------------------------------------------------------------------------------------


def _total(forward: Callable[..., Outputs], w: Params, *given: Any) -> tuple[Tensor, list[Tensor]]:
    """Returns a number that depends on each output by another weight, and the outputs."""
    outputs = tensors_of(forward(w, *given))
    floats = [x.float().flatten() for x in outputs if x.is_floating_point()]
    each = [x @ torch.arange(1, 1 + len(x)).to(x).cos() for x in floats]
    return torch.stack([*each, torch.zeros(())]).sum(), outputs


def _by_autograd(forward: Callable[..., Outputs], w: Params, *given: Any) -> tuple[Params, Any]:
    """Returns the gradient of ``_total`` by plain autograd, and the outputs."""
    at = {name: leaf.detach().requires_grad_() for name, leaf in w.items()}
    total, outputs = _total(forward, at, *given)
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]  # torch's
    slopes = {n: torch.zeros_like(x) if x.grad is None else x.grad for n, x in at.items()}
    return slopes, [x.detach() for x in outputs]


def _each(
    differentiate: Callable[..., Any], passes: Any, w: Params, batch: Inputs, key: Tensor
) -> list[list[Tensor]]:
    """Returns outputs with statistics, and gradients, in evaluation; then both in training."""
    found = []
    for forward, *given in ((passes.apply, batch), (passes.train, batch, key)):
        slopes, outputs = differentiate(forward, w, *given)
        after = passes.statistics(w, *given) if len(given) > 1 and passes.running else {}
        found += [[*outputs, *(after[n] for n in sorted(after))], list(slopes.values())]
    return found


def _in_turn(passes: Any, params: Params, rows: Sequence[Inputs]) -> list[list[Tensor]]:
    """Takes the passes of each batch by plain autograd."""
    keyed = enumerate(rows)
    return [x for i, b in keyed for x in _each(_by_autograd, passes, params, b, torch.tensor(i))]


def _together(passes: Any, params: Params, rows: Sequence[Inputs]) -> list[list[Tensor]]:
    """Takes those of both batches at once, by ``vmap``."""
    stacked = tree_map(lambda *leaves: torch.stack(leaves), *rows)
    many = {name: leaf.expand(2, *leaf.shape) for name, leaf in params.items()}
    each = partial(_each, grad(_total, argnums=1, has_aux=True), passes)
    found = vmap(each)(many, stacked, torch.arange(2))
    return [[leaf[i] for leaf in some] for i in range(2) for some in found]


def _alike(found: list[list[Tensor]], expected: list[list[Tensor]]) -> bool:
    """Returns whether passes give the same numbers, up to rounding.

    This grows where a layer normalizes by two numbers, as batch norm of two rows may in training.
    """
    shares = (1e-2, 1e-4), (1e-2, 1e-4), (0.3, 1e-2), (0.3, 1e-2)  # of each array; of the largest
    for ours, theirs, (each, of_all) in zip(found, expected, 2 * shares, strict=True):
        pairs = [[x.float().nan_to_num(0.0, 0.0, 0.0) for x in some] for some in (ours, theirs)]
        sizes = [float(x.norm()) for x in pairs[1]]
        for one, other, size in zip(*pairs, sizes, strict=True):
            if not float((one - other).norm()) <= each * size + of_all * max(sizes):
                return False
    return True
