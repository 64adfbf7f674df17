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

from engram.checks import require
from engram.models.base import Inputs, Outputs, called, copied
from engram.models.functional import NORMS, Pure
from engram.models.skeleton import Skeleton, addresses_of, in_single, leaves, same, tensors_of
from engram.process import drawing
from engram.types import Params


class Itself:
    """A module that takes passes itself, with parameters that are copied into its own.

    Gradients are what torch leaves in these: hooks act on them, what is checkpointed is computed
    again, and a parameter that a pass does not reach has none. They have no derivatives.

    Args:
        module: The module, which is copied.
        like: The same module as functions.
        draws: ``key -> context`` in which a pass in training draws.
    """

    def __init__(
        self,
        module: nn.Module,
        like: Skeleton,
        draws: Callable[[Tensor], AbstractContextManager[Any]],
    ) -> None:
        self.module = copied(module)
        self._norms = [part for part in self.module.modules() if isinstance(part, NORMS)]
        for part in self._norms:
            part.num_batches_tracked = None
        self._fixed, self._noisy, self._draws = like.fixed, like.noisy, draws
        self.running, self._moved = like.running, like.running | like.renormed
        self.leaves = dict(leaves(self.module, self.running))
        self._last: tuple[Any, ...] = ()  # training pass

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
        if not self._moved <= params.keys():  # a part of a network, which takes no pass
            return {}
        seen, its_key, addresses = self._last or (None, None, None)
        if seen is not inputs or its_key is not key or addresses != addresses_of(params):
            with torch.no_grad():
                self.train(params, inputs, key)
        return {name: self.leaves[name].detach().float().clone() for name in sorted(self._moved)}

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
    kind, running = type(module).__name__, skeleton.running
    # Away from where it starts, which may be a point without a gradient.
    params = {
        name: x if name in running else x + 0.01 * torch.randn_like(x)
        for name, x in skeleton.start.items()
    }
    rows = example, tree_map(lambda leaf: leaf.flip(0), example)
    before = [(leaf, leaf.grad) for leaf in module.parameters()]
    module.zero_grad()
    failure: Exception | None = None
    missed: list[set[str]] = []
    for draws in (partial(Pure, drawing=True), _drawing):  # what is checkpointed draws again
        plain = Itself(module, skeleton, draws)
        try:
            expected = _in_turn(plain, params, rows, missed)
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
    changed = [n for n, x in params.items() if not same(plain.leaves[n].float(), x)]
    changed = [n for n in changed if n not in running | skeleton.renormed]
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
            unreached = frozenset(missed[-1] & missed[-2]) - running
            return static, None, unreached if static else frozenset()
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


def _in_turn(
    passes: Any, params: Params, rows: Sequence[Inputs], missed: list[set[str]] | None = None
) -> list[list[Tensor]]:
    """Takes the passes by plain autograd; notes which parameters have no gradient in training.

    Returns:
        For each, the outputs and running statistics, or the gradients.
    """
    found = []
    for i, batch in enumerate([*rows, *rows]):
        training = i < len(rows)
        given = (batch, torch.tensor(i)) if training else (batch,)
        at = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        total, outputs = _total(passes.train if training else passes.apply, at, *given)
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]  # torch's
        if training and missed is not None:
            missed.append({name for name, x in at.items() if x.grad is None})
        after = passes.statistics(params, *given) if training and passes.running else {}
        found.append([x.detach() for x in (*outputs, *(after[n] for n in sorted(after)))])
        found.append([torch.zeros_like(x) if x.grad is None else x.grad for x in at.values()])
    return found


def _together(passes: Any, params: Params, rows: Sequence[Inputs]) -> list[list[Tensor]]:
    """Takes those of both batches at once, by ``vmap``; see ``_in_turn``."""

    def both(w: Params, batch: Inputs, key: Tensor) -> list[list[Tensor]]:
        found = []
        for forward, *given in ((passes.train, batch, key), (passes.apply, batch)):
            slopes, outputs = grad(partial(_total, forward), has_aux=True)(w, *given)
            after = passes.statistics(w, *given) if len(given) > 1 and passes.running else {}
            found += [[*outputs, *(after[n] for n in sorted(after))], list(slopes.values())]
        return found

    stacked = tree_map(lambda *leaves: torch.stack(leaves), *rows)
    many = {name: leaf.expand(2, *leaf.shape) for name, leaf in params.items()}
    each = vmap(both)(many, stacked, torch.arange(2))
    one, other = (tree_map(lambda leaf, i=i: leaf[i], each) for i in range(2))
    return [*one[:2], *other[:2], *one[2:], *other[2:]]


def _alike(found: Sequence[Sequence[Tensor]], expected: Sequence[Sequence[Tensor]]) -> bool:
    """Returns whether passes give the same numbers, up to rounding.

    This grows where a layer normalizes by two numbers, as batch norm of two rows may in training.
    """
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        each, of_all = (0.3, 1e-2) if i < len(expected) // 2 else (1e-2, 1e-4)
        pairs = [[x.float().nan_to_num(0.0, 0.0, 0.0) for x in some] for some in (ours, theirs)]
        sizes = [float(x.norm()) for x in pairs[1]]
        for one, other, size in zip(*pairs, sizes, strict=True):
            if not float((one - other).norm()) <= each * size + of_all * max(sizes):
                return False
    return True
