"""Optimizers of local steps: how far, and where, a model moves along a local rule's directions.

Every rule steps from w to ``w - eta d`` along a direction d: a gradient, or what its method has in
place of one. An optimizer replaces that move, with the equations and constants of ``torch.optim``;
a schedule scales it. Adam: Kingma, Ba. ICLR 2015; its decoupled weight decay: Loshchilov, Hutter.
ICLR 2019.
"""

import math
from collections.abc import Callable, Set
from typing import Final

import torch
from torch import Tensor

from engram.checks import require
from engram.steps import OPTIMIZERS, OwnOptimizer
from engram.tree import add_scaled, interpolate, marked, norm
from engram.types import Batch, LocalRule, Params, Scale

__all__ = [
    "AFFINE",
    "descent",
    "model_part",
    "scaled",
    "with_optimizer",
]

Direction = Callable[[Params, Params, tuple[Batch, ...]], tuple[Params, Params]]

AFFINE: Final = frozenset({"sgd", "momentum"})
"""Optimizers that leave an affine rule affine; see ``LocalRule.affine``."""

_MARK: Final = "optimizer/"  # before the names of an optimizer's part of a rule's state
_FIRST, _SECOND, _STEPS = (f"{_MARK}{part}/" for part in ("first", "second", "steps"))
_OWN = f"{_MARK}own-"  # before the names of moments of a user's optimizer
_BETA2, _EPSILON = 0.999, 1e-8


def descent(direction: Direction, eta: Scale) -> Direction:
    """Builds ``(w, u, batches) -> (w - eta d, u)`` of ``(w, u, batches) -> (d, u)``.

    What d lacks of w stays as it is.
    """

    def step(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        d, u = direction(w, u, batches)
        return w | add_scaled({key: w[key] for key in d}, -eta, d), u

    return step


def scaled(rule: LocalRule, factor: float) -> LocalRule:
    """Returns a rule each of whose steps goes ``factor`` times as far: a schedule's step size."""

    def step(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        moved, u = rule.step(w, u, batches)
        return interpolate(w, moved, factor), u

    if factor == 1:
        return rule
    then = rule.then and (rule.then[0], scaled(rule.then[1], factor))
    return rule._replace(step=rule.step if rule.prepares else step, then=then)


def model_part(u: Params) -> Params:
    """Returns the part of a state that is the rule's own, without the optimizer's."""
    return {name: leaf for name, leaf in u.items() if not name.startswith(_MARK)}


def with_optimizer(
    rule: LocalRule,
    name: str = "sgd",
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    clip: float = 0.0,
    statistics: Set[str] = frozenset(),
) -> LocalRule:
    """Returns a rule that moves along the same directions by an optimizer.

    With ``g`` for the direction d, clipped, the optimizers do this::

        sgd       w <- w - eta g
        momentum  m <- momentum m + g;   w <- w - eta m
        adam      m <- momentum m + (1 - momentum) g;   v <- 0.999 v + 0.001 g^2
                  w <- w - eta m' / (sqrt(v') + 1e-8),  m' and v' corrected for their start at zero
        adamw     the same, of w (1 - eta weight_decay)

    One of a user's moves to ``w - eta d``, with its own d; see ``engram.optimizer``.

    All but adamw first add ``weight_decay w`` to g. What is remembered is part of the rule's state,
    with names of its own, beside a personal model if it has one.

    Args:
        rule: The rule. It is returned as it is for sgd without decay and clipping.
        name: The optimizer.
        momentum: In [0, 1); sgd does not read it.
        weight_decay: >= 0.
        clip: Largest Euclidean norm of d, over all parameters of a model; longer ones are scaled
            down to it. 0: no bound.
        statistics: Names of w that are no parameters: they do not decay, and have no part in d's
            norm.

    Raises:
        ValueError: If a value is out of range, or the rule has no direction.
    """
    require(0 <= momentum < 1, "momentum", momentum, "at least 0, below 1")
    require(weight_decay >= 0, "weight-decay", weight_decay, "at least 0")
    require(clip >= 0, "gradient-clip", clip, "at least 0")
    if name == "sgd" and not weight_decay and not clip:
        return rule
    direction, eta, moved = rule.direction, rule.eta, rule.moved
    if direction is None and not rule.prepares:
        raise ValueError("optimizer must be sgd, without decay and clipping: the method's own step")

    def optimized(other: LocalRule) -> LocalRule:
        return with_optimizer(
            other,
            name,
            momentum=momentum,
            weight_decay=weight_decay,
            clip=clip,
            statistics=statistics,
        )

    then = rule.then and (rule.then[0], optimized(rule.then[1]))
    users = OPTIMIZERS.get(name)
    stateless = name == "sgd" or (users is not None and not users.remembers)

    def moments(w: Params) -> Params:
        later = then[1].moments(w) if then and then[1].moments else {}
        return later if direction is None else later | moments_of(moved(w) if moved else w)

    def moments_of(w: Params) -> Params:
        if users is not None:
            return _users_moments(users, learned(w))
        if name == "sgd":
            return {}
        zeros = {_FIRST + key: torch.zeros_like(leaf) for key, leaf in w.items()}
        if name == "momentum":
            return zeros
        zeros |= {_SECOND + key: torch.zeros_like(leaf) for key, leaf in w.items()}
        return zeros | {_STEPS + min(w): next(iter(w.values())).new_zeros(())}

    def init(w: Params, batch: Batch | None) -> Params:
        return rule.init(w, batch) | moments(w)

    def learned(w: Params) -> Params:
        return {key: leaf for key, leaf in w.items() if key not in statistics}

    def step(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        if direction is None:
            w, own = rule.step(w, model_part(u), batches)
            return w, u | own
        g, own = direction(w, model_part(u), batches)
        if clip:
            g = g | _clipped(learned(g), clip)
        x = {key: w[key] for key in g}
        if weight_decay and name == "adamw":
            x = x | add_scaled(learned(x), -eta * weight_decay, x)
        elif weight_decay:
            g = g | {key: g[key] + weight_decay * leaf for key, leaf in learned(x).items()}
        if name == "sgd":
            return w | add_scaled(x, -eta, g), u | own
        if users is not None:
            d, held = _users_step(users, learned(g), u)
            return w | add_scaled({key: x[key] for key in d}, -eta, d), u | own | held
        first = {key: u[_FIRST + key] for key in g}
        if name == "momentum":
            first = add_scaled(g, momentum, first)
            return w | add_scaled(x, -eta, first), u | own | marked(first, _FIRST)
        first = interpolate(g, first, momentum)
        second = {key: torch.lerp(g[key] ** 2, u[_SECOND + key], _BETA2) for key in g}
        counted = _STEPS + min(g)  # of what is moved together, by its first name
        steps = u[counted] + 1
        d = _normalized(first, second, _correction(momentum, steps), _correction(_BETA2, steps))
        found = marked(first, _FIRST) | marked(second, _SECOND) | {counted: steps}
        return w | add_scaled(x, -eta, d), u | own | found

    return rule._replace(
        init=init,
        step=step,
        moments=None if stateless else moments,
        then=then,
        direction=None,
        affine=rule.affine and name in AFFINE and not weight_decay and not clip,
    )


def _users_moments(users: OwnOptimizer, w: Params) -> Params:
    found = {
        f"{_OWN}{moment}/{key}": torch.zeros_like(leaf)
        for moment in users.moments
        for key, leaf in w.items()
    }
    return found | ({_STEPS + min(w): next(iter(w.values())).new_zeros(())} if users.counts else {})


def _users_step(users: OwnOptimizer, g: Params, u: Params) -> tuple[Params, Params]:
    """Returns the direction of a user's optimizer, and its state after the step."""
    at = _STEPS + min(g)
    counted = {at: u[at] + 1} if users.counts else {}
    named = {"step": counted[at]} if users.counts else {}
    d, held = Params(), Params()
    for key, leaf in g.items():
        marks = [f"{_OWN}{moment}/{key}" for moment in users.moments]
        found = users.update(leaf, *(u[mark] for mark in marks), **named)
        all_ = found if isinstance(found, tuple) else (found,)
        shapes = [tuple(one.shape) for one in all_]
        expected = f"{1 + len(marks)} tensors of shape {tuple(leaf.shape)}"
        require(shapes == [tuple(leaf.shape)] * (1 + len(marks)), "it", shapes, expected)
        d[key], *after = all_
        held |= dict(zip(marks, after, strict=True))
    return d, held | counted


def _clipped(g: Params, most: float) -> Params:
    found: Params = {}
    for mark in {key.rpartition("/")[0] for key in g}:  # each of several models by itself
        own = {key: leaf for key, leaf in g.items() if key.rpartition("/")[0] == mark}
        factor = (most / (norm(own) + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_ has it
        found |= {key: leaf * factor for key, leaf in own.items()}
    return found


def _correction(beta: float, steps: Tensor) -> Tensor:
    """Returns ``1 - beta^steps``, to float32's precision though beta be near 1."""
    return -torch.expm1(steps * math.log(beta)) if beta else torch.ones_like(steps)


def _normalized(first: Params, second: Params, one: Tensor, two: Tensor) -> Params:
    return {
        key: leaf / one / ((second[key] / two).sqrt() + _EPSILON) for key, leaf in first.items()
    }
