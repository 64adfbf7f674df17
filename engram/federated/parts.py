"""Rules of which each step trains a part of a network: the split family of personalization.

Clients share a part of a network and keep the other; methods differ in which part that is and when
each part is trained. FedPer (Arivazhagan et al. 2019), LG-FedAvg (Liang et al. 2020) and FedBN
(Li et al., ICLR 2021) train both parts in each step, which is FedAvg's rule as it is. FedBABU (Oh,
Kim, Yun, ICLR 2022) never trains the head. FedRep (Collins, Hassani, Mokhtari, Shakkottai, ICML
2021) and FedAlt (Pillutla et al., ICML 2022) train one part after the other.
"""

import math
from collections.abc import Callable, Set
from contextlib import AbstractContextManager, nullcontext

from engram.checks import require
from engram.derivatives import moving_only
from engram.optimizers import descent
from engram.types import Batch, LocalRule, Params

__all__ = ["first_steps", "in_turn", "only", "whose_turn", "without"]


def only(rule: LocalRule, names: Set[str]) -> LocalRule:
    """Returns a rule that moves some parameters, as it moved them before; the others stay.

    A gradient that autograd takes has zeros for the others, which saves the work for them.

    Args:
        rule: The rule. Of one that leaves later steps to another, its own steps alone are changed.
        names: The parameters.
    """
    return _moving(rule, lambda name: name in names)


def without(rule: LocalRule, names: Set[str]) -> LocalRule:
    """Returns a rule that moves all parameters but these, as ``only`` does: FedBABU's, Alg. 1."""
    return _moving(rule, lambda name: name not in names)


def in_turn(rule: LocalRule, names: Set[str], share: float) -> LocalRule:
    """Returns a rule that first moves some parameters and then, from there, the others.

    With the personal part as ``names``, this is FedRep's (Alg. 1) and FedAlt's (its LocalAlt)
    round. An optimizer's moments of a part do not change while it rests. Either part has a step at
    least; of a single step the second part has it.

    Args:
        rule: The rule.
        names: The parameters that are moved first.
        share: By which share of a round's steps, rounded up; in (0, 1).

    Raises:
        ValueError: If ``share`` is out of range.
    """
    require(share > 0, "share of the first steps", share, "positive")
    return only(rule, names)._replace(then=(first_steps(share), without(rule, names)))


def first_steps(share: float) -> Callable[[int], int]:
    """Returns how many are the first ones of n steps: a share, rounded up, at most n - 1.

    Args:
        share: In [0, 1).

    Raises:
        ValueError: If ``share`` is out of range.
    """
    require(0 <= share < 1, "share of the first steps", share, "in [0, 1)")
    return lambda n: min(math.ceil(round(share * n, 9)), n - 1)  # 0.07 * 100 is more than 7


def _moving(rule: LocalRule, moves: Callable[[str], bool]) -> LocalRule:
    direction, alone = rule.direction, not rule.companions

    def holding() -> AbstractContextManager[None]:
        # Beside companions, a gradient may be of a mixture, and move what has another name.
        return moving_only(moves) if alone else nullcontext()

    def moved(w: Params) -> Params:
        return {name: leaf for name, leaf in w.items() if moves(name)}

    def whole(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        with holding():
            after, u = rule.step(w, u, batches)
        return w | moved(after), u

    def some(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        assert direction is not None  # for mypy: it is asked for below
        with holding():
            d, u = direction(w, u, batches)
        return moved(d), u

    step = descent(some, rule.eta) if direction else whole  # which lets the others be
    return rule._replace(step=step, direction=direction and some, moved=moved)


def whose_turn(rule: LocalRule, *, later: bool) -> LocalRule:
    """Returns the rule that takes a step: before the turn, or later."""
    return rule.then[1] if later and rule.then is not None else rule
