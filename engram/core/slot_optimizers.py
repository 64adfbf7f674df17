"""Optimizers of local steps along the directions of a method.

They have the equations and constants of ``torch.optim``. Adam: Kingma, Ba. ICLR 2015; its decoupled
weight decay: Loshchilov, Hutter. ICLR 2019.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from engram.core.checks import require
from engram.core.slots import zeros
from engram.core.tree import add_scaled, interpolate, multiplied, norm
from engram.core.types import Params, Scale
from engram.networks.optimizers import OPTIMIZERS, OwnOptimizer

State = dict[str, Any]
"""Moments of one slot: ``Params`` by the name of the moment, and ``steps`` of each parameter."""

_BETA2, _EPSILON = 0.999, 1e-8


class Optimizer(NamedTuple):
    """An optimizer of one slot's parameters.

    Attributes:
        init: ``w -> state`` before the first step.
        update: ``(w, d, state, eta) -> (w, state)``: one step along the direction d.
        remembers: Whether it has a state from step to step.
        affine: Whether its step is affine in w and d; see ``Phase.affine``.
    """

    init: Callable[[Params], State]
    update: Callable[[Params, Params, State, Scale], tuple[Params, State]]
    remembers: bool
    affine: bool


SGD: Final = Optimizer(
    init=lambda w: {},
    update=lambda w, d, state, eta: (add_scaled(w, -eta, d), state),
    remembers=False,
    affine=True,
)
"""Plain steps, ``w <- w - eta d``."""


def optimizer_of(
    name: str = "sgd",
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    clip: float = 0.0,
    decays: Mapping[str, float] = MappingProxyType({}),
    ratios: Mapping[str, float] = MappingProxyType({}),
) -> Optimizer:
    """Builds an optimizer.

    With ``g`` for the direction d, clipped::

        sgd       w <- w - eta g
        momentum  m <- momentum m + g;   w <- w - eta m
        adam      m <- momentum m + (1 - momentum) g;   v <- 0.999 v + 0.001 g^2
                  w <- w - eta m' / (sqrt(v') + 1e-8),  m' and v' corrected for their start at zero
        adamw     the same, of w (1 - eta weight_decay)

    A user's optimizer returns another d, and ``w <- w - eta d``; see ``engram.optimizer``. All but
    adamw first add ``weight_decay w`` to g.

    Args:
        name: The optimizer.
        momentum: In [0, 1); sgd does not read it.
        weight_decay: >= 0.
        clip: Largest Euclidean norm of d, over all parameters of a slot; longer ones are scaled
            down to it. 0: no bound.
        decays: Weight decay of parameters in place of ``weight_decay``, by name.
        ratios: Step sizes of parameters over eta, where they differ, by name.

    Raises:
        ValueError: If a value is out of range.
    """
    require(0 <= momentum < 1, "momentum", momentum, "at least 0, below 1")
    require(weight_decay >= 0, "weight-decay", weight_decay, "at least 0")
    require(clip >= 0, "gradient-clip", clip, "at least 0")
    if name in OPTIMIZERS:
        plain = _users(OPTIMIZERS[name])
    else:
        plain = {"sgd": SGD, "momentum": _momentum(momentum)}.get(name) or _adam(momentum)
    directed = bool(weight_decay or clip or decays)
    if not (directed or ratios):
        return plain

    def decayed(x: Params, scale: Scale, w: Params) -> Params:
        shares = {n: scale * decays.get(n, weight_decay) for n in x}
        return {n: add_scaled({n: leaf}, shares[n], w)[n] for n, leaf in x.items()}

    def update(w: Params, d: Params, state: State, eta: Scale) -> tuple[Params, State]:
        if clip:
            # As torch's clip_grad_norm_ has it.
            d = multiplied(d, (clip / (norm(d) + 1e-6)).clamp(max=1.0))
        if name == "adamw":
            begun = decayed(w, -eta, w)
        else:
            begun, d = w, decayed(d, 1.0, w)
        moved, state = plain.update(begun, d, state, eta)
        own = {n: w[n].lerp(moved[n], ratios[n]) for n in ratios.keys() & d.keys()}
        return moved | own, state

    return plain._replace(update=update, affine=plain.affine and not directed)


def _momentum(beta: float) -> Optimizer:
    def update(w: Params, d: Params, state: State, eta: Scale) -> tuple[Params, State]:
        first = add_scaled(d, beta, state["first"])
        return add_scaled(w, -eta, first), {"first": first}

    return Optimizer(lambda w: {"first": zeros(w)}, update, remembers=True, affine=True)


def _adam(beta: float) -> Optimizer:
    def init(w: Params) -> State:
        return {"first": zeros(w), "second": zeros(w), "steps": _no_steps(w)}

    def update(w: Params, d: Params, state: State, eta: Scale) -> tuple[Params, State]:
        first, steps = interpolate(d, state["first"], beta), _counted(d, state)
        counts = torch.stack(list(steps.values()))
        second = {n: torch.lerp(g**2, state["second"][n], _BETA2) for n, g in d.items()}
        ones, twos = _correction(beta, counts).unbind(), _correction(_BETA2, counts).unbind()
        move = {
            n: m / one / ((second[n] / two).sqrt() + _EPSILON)
            for (n, m), one, two in zip(first.items(), ones, twos, strict=True)
        }
        return add_scaled(w, -eta, move), {"first": first, "second": second, "steps": steps}

    return Optimizer(init, update, remembers=True, affine=False)


def _no_steps(w: Params) -> Params:
    return {n: leaf.new_zeros(()) for n, leaf in w.items()}


def _counted(d: Params, state: State) -> Params:
    return {n: state["steps"][n] + 1 for n in d}


def _correction(beta: float, steps: Tensor) -> Tensor:
    """Returns ``1 - beta^steps``, to float32's precision though beta be near 1."""
    return -torch.expm1(steps * math.log(beta)) if beta else torch.ones_like(steps)


# --- Optimizers of users -----------------------------------------------------------------------


def _users(own: OwnOptimizer) -> Optimizer:
    def init(w: Params) -> State:
        state: State = {moment: zeros(w) for moment in own.moments}
        return state | ({"steps": _no_steps(w)} if own.counts else {})

    def update(w: Params, d: Params, state: State, eta: Scale) -> tuple[Params, State]:
        counted = {"steps": _counted(d, state)} if own.counts else {}
        move, moments = Params(), {moment: Params() for moment in own.moments}
        for n, g in d.items():
            named = {"step": counted["steps"][n]} if own.counts else {}
            found = own.update(g, *(state[moment][n] for moment in own.moments), **named)
            all_ = found if isinstance(found, tuple) else (found,)
            shapes = [tuple(one.shape) for one in all_]
            expected = f"{1 + len(own.moments)} tensors of shape {tuple(g.shape)}"
            require(shapes == [tuple(g.shape)] * (1 + len(own.moments)), "it", shapes, expected)
            move[n], *after = all_
            for moment, leaf in zip(own.moments, after, strict=True):
                moments[moment][n] = leaf
        return add_scaled(w, -eta, move), moments | counted

    return Optimizer(init, update, remembers=own.remembers, affine=False)


def check_optimizer(name: str) -> bool:
    """Tries a user's optimizer on a small array; others pass.

    Returns:
        Whether ``vmap`` can run it.

    Raises:
        ValueError: If it fails, or returns other arrays than it should.
    """
    if name not in OPTIMIZERS:
        return True
    users = _users(OPTIMIZERS[name])
    g = {"": torch.linspace(-1, 1, 6).reshape(2, 3)}

    def one(g: Params) -> Params:
        return users.update(g, g, users.init(g), 1.0)[0]

    try:
        one(g)
    except Exception as error:  # it may be anybody's
        takes = "a gradient and its moments, and return a direction and as many"
        text = f"optimizer {name} must take {takes}: {type(error).__name__}: {error}"
        raise ValueError(text) from error
    try:
        vmap(one)({"": torch.stack([g[""], g[""]])})
    except Exception:  # as above
        return False
    return True
