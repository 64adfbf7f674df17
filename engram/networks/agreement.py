"""Passes of a module as the engines take them, compared with those that torch takes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from engram.core.checks import must, require
from engram.core.tree import repeated, stacked
from engram.core.types import Params
from engram.networks.base import Inputs, Outputs, called, copied
from engram.networks.functional import NORMS, Pure
from engram.networks.traced_module import Skeleton, leaves, tensors_of


def agreement(
    module: nn.Module, skeleton: Skeleton, example: Inputs
) -> tuple[bool, frozenset[str]]:
    """Takes a forward and a backward pass of two batches, in training and in evaluation.

    Returns:
        Whether ``vmap`` of its functions takes torch's passes, and names of parameters that then
        never have a gradient.

    Raises:
        ValueError: If torch takes no backward pass, or its functions take another one: parameters
            have hooks, or a part is checkpointed.
    """
    kind = type(module).__name__
    # Away from where it starts, which may be a point without a gradient.
    params = {
        name: x if name in skeleton.running else x + 0.01 * torch.randn_like(x)
        for name, x in skeleton.start.items()
    }
    rows = example, tree_map(lambda leaf: leaf.flip(0), example)
    before = [(leaf, leaf.grad) for leaf in module.parameters()]
    net = copied(module)
    module.zero_grad()
    try:
        expected, missed = _by_torch(net, skeleton, params, rows)
    except Exception as error:  # a module may be anybody's
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"{kind} must take a backward pass, got {said}") from error
    captured = [name for name, leaf in module.named_parameters() if leaf.grad is not None]
    for leaf, gradient in before:
        leaf.grad = gradient
    require(not captured, f"parameters that a copy of {kind} uses", captured, "its own alone")
    for way in (_together, _in_turn):
        try:
            alike = _alike(way(skeleton, params, rows), expected)
        except Exception:  # of what has no rule; it may be anything that a module does
            continue
        if alike:
            return way is _together, missed if way is _together else frozenset()
    wanted = "those of its functions (no checkpointed parts)"
    raise ValueError(must(f"gradients of {kind}", "others", wanted))


# --- Passes --------------------------------------------------------------------------------------


def _by_torch(
    net: nn.Module, skeleton: Skeleton, params: Params, rows: Sequence[Inputs]
) -> tuple[list[list[Tensor]], frozenset[str]]:
    """Takes the passes of each batch by a copy of the module itself.

    Returns:
        What ``_in_turn`` returns, and names of parameters without a gradient.
    """
    norms = [part for part in net.modules() if isinstance(part, NORMS)]
    for part in norms:
        part.num_batches_tracked = None
    own = dict(leaves(net, skeleton.running))
    found = []
    for number, batch in enumerate(rows):
        for training in (False, True):
            with torch.no_grad():
                for name, leaf in own.items():
                    leaf.copy_(params[name])
                    leaf.grad = None
            net.train(training)
            for part in norms if skeleton.fixed else ():
                part.eval()
            with Pure(torch.tensor(number), drawing=True):
                total, outputs = _total(lambda _, x: called(net, x), {}, batch)
            if total.requires_grad:
                total.backward()  # type: ignore[no-untyped-call]  # torch's
            after = [own[n].detach().clone() for n in sorted(skeleton.running) if training]
            slopes = [torch.zeros_like(x) if x.grad is None else x.grad for x in own.values()]
            found += [[*(x.detach() for x in outputs), *after], slopes]
    missed = {name for name, leaf in own.items() if leaf.grad is None}
    return found, frozenset(missed - skeleton.running)


def _total(forward: Callable[..., Outputs], w: Params, *given: Any) -> tuple[Tensor, list[Tensor]]:
    """Returns a number that depends on each output by another weight, and the outputs."""
    outputs = tensors_of(forward(w, *given))
    floats = [x.float().flatten() for x in outputs if x.is_floating_point()]
    each = [x @ torch.arange(1, 1 + len(x)).to(x).cos() for x in floats]
    return torch.stack([*each, torch.zeros(())]).sum(), outputs


def _by_autograd(forward: Callable[..., Outputs], w: Params, *given: Any) -> tuple[Params, Any]:
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
    keyed = enumerate(rows)
    return [x for i, b in keyed for x in _each(_by_autograd, passes, params, b, torch.tensor(i))]


def _together(passes: Any, params: Params, rows: Sequence[Inputs]) -> list[list[Tensor]]:
    each = partial(_each, grad(_total, argnums=1, has_aux=True), passes)
    found = vmap(each)(repeated(params, 2), stacked(rows), torch.arange(2))
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
