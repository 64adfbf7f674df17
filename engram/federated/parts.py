"""Rules of which each step trains a part of a network: the split family of personalization.

Clients share a part of a network and keep the other; methods differ in which part that is and when
each part is trained. FedPer (Arivazhagan et al. 2019), LG-FedAvg (Liang et al. 2020) and FedBN
(Li et al., ICLR 2021) train both parts in each step, which is FedAvg's rule as it is. FedBABU (Oh,
Kim, Yun, ICLR 2022) never trains the head. FedRep (Collins, Hassani, Mokhtari, Shakkottai, ICML
2021) and FedAlt (Pillutla et al., ICML 2022) train one part after the other.
"""

import math
from collections.abc import Callable, Set

from engram.checks import require
from engram.optimizers import descent
from engram.types import Batch, LocalRule, Params

__all__ = ["in_turn", "only", "whose_turn", "without"]


def only(rule: LocalRule, names: Set[str]) -> LocalRule:
    """Returns a rule that moves some parameters, along the same directions; the others stay.

    Args:
        rule: One with a direction.
        names: The parameters.

    Raises:
        ValueError: If the rule has no direction.
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
        rule: One with a direction.
        names: The parameters that are moved first.
        share: By which share of a round's steps, rounded up; in (0, 1).

    Raises:
        ValueError: If ``share`` is out of range, or the rule has no direction.
    """
    require(0 < share < 1, "share of the first part", share, "in (0, 1)")

    def turn(steps: int) -> int:
        return min(math.ceil(round(share * steps, 9)), steps - 1)  # 0.07 * 100 is more than 7

    return only(rule, names)._replace(then=(turn, without(rule, names)))


def _moving(rule: LocalRule, moves: Callable[[str], bool]) -> LocalRule:
    direction = rule.direction
    if direction is None:
        raise ValueError("a rule that is taken in parts must have a direction")

    def moved(w: Params) -> Params:
        return {name: leaf for name, leaf in w.items() if moves(name)}

    def some(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        d, u = direction(w, u, batches)
        return moved(d), u

    return rule._replace(step=descent(some, rule.eta), direction=some, moved=moved)


def whose_turn(rule: LocalRule, *, later: bool) -> LocalRule:
    """Returns the rule that takes a step: before the turn, or later."""
    return rule.then[1] if later and rule.then is not None else rule
