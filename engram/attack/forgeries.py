"""Updates that attackers forge from their honest ones, and from those of all others.

``own`` are the changes that attackers would send honestly, with a leading axis of attackers, and
``honest`` those of the others, with a leading axis of clients. The simulation multiplies forged
changes by ``attack-scale``.
"""

from collections.abc import Callable, Mapping
from typing import Final

from scipy.stats import norm

from engram.core.method import Claim
from engram.core.tree import multiplied
from engram.core.types import Params

_HUGE: Final = 1e6


def alie(own: Params, honest: Params) -> Params:
    """A little is enough: attackers hide within the spread of the others, and drag the mean along.

    Baruch, Baruch, Goldberg. A Little Is Enough: Circumventing Defenses For Distributed Learning.
    NeurIPS 2019. Every attacker sends ``mean - z std`` of each coordinate over the honest clients::

        s = floor(n / 2 + 1) - m,    z = the largest with Phi(z) < (n - m - s) / (n - m)

    for m attackers among n clients (Alg. 3): s honest clients, with the attackers a majority, are
    then expected to lie farther from the mean than they do. Where none need be, z is 0.
    """
    m = len(next(iter(own.values())))
    z = alie_deviations(m + len(next(iter(honest.values()))), m)
    return {
        name: (x.mean(0) - z * x.std(0, unbiased=False)).expand_as(own[name]).to(own[name])
        for name, x in honest.items()
    }


def alie_deviations(clients: int, attackers: int) -> float:
    """Returns z of ``alie``, in standard deviations; at least 0, and finite."""
    supporters = max(clients // 2 + 1 - attackers, 0)
    share = (clients - attackers - supporters) / (clients - attackers)
    return max(float(norm.ppf(min(share, 1 - 1 / (clients + 1)))), 0.0)


def ipm(own: Params, honest: Params) -> Params:
    """Inner-product manipulation: attackers send ``-mean_j d_j`` over the honest changes d_j.

    Xie, Koyejo, Gupta. Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
    Manipulation. UAI 2019. ``attack-scale`` is its epsilon. With a small one the forged updates are
    short and near each other, which Krum and medians take for consent; with a large one the mean
    turns round.
    """
    return {name: (-x.mean(0)).expand_as(own[name]).to(own[name]) for name, x in honest.items()}


ON_UPDATES: Final[Mapping[str, Callable[[Params, Params], Params]]] = {
    "sign-flip": lambda own, honest: multiplied(own, -1.0),
    # Bagdasaryan et al. How To Backdoor Federated Learning. AISTATS 2020, Eq. 3: scaled by the
    # number of clients, one attacker's model replaces the mean; it makes a backdoor stick.
    "scaled": lambda own, honest: own,
    "alie": alie,
    "ipm": ipm,
}
"""Attacks on updates by name: ``(own, honest) -> forged``."""


def false_statistics(claims: Mapping[str, Claim], own: Params, scale: float) -> Params:
    """False statistics: signs are flipped, and weights and denominators are lies.

    An update with impossible claims is left out (``engram.guards.robust.claims``). What is left to
    an attacker is to call its own representation the opposite of what it is, to spoil another model
    than the one it has trained, and to call itself very precise or very important.

    An amount becomes a million times as large. A ``square``, which says how imprecise the means
    beside it are, becomes 0; these means stay, so that it is believed. Shares of choices move on by
    one, others stay. Everything else becomes ``-scale`` times as much: models, sums, differences.

    Args:
        claims: The method's claims.
        own: The attackers' honest changes by path; of statistics, these themselves.
        scale: Factor of what is flipped.
    """
    found: Params = {}
    for path, x in own.items():
        slot, claim = path.rpartition("/")[0], claims.get(path)
        if claim == "amount":
            found[path] = x * (0.0 if path.endswith("square") else _HUGE)
        elif claim == "shares":
            found[path] = x if f"{slot}/sums" in claims else x.roll(1, -1)
        else:
            believed = claim == "sums" and f"{slot}/square" in claims
            found[path] = x if believed else -scale * x
    return found
