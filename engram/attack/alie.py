"""A little is enough: attackers hide within the spread of the others, and drag the mean with them.

Baruch, Baruch, Goldberg. A Little Is Enough: Circumventing Defenses For Distributed Learning.
NeurIPS 2019.
"""

from scipy.stats import norm

from engram.core.types import Params


def forged(own: Params, honest: Params) -> Params:
    """Returns, for every attacker, ``mean - z std`` of each coordinate over the honest clients.

        s = floor(n / 2 + 1) - m,    z = the largest with Phi(z) < (n - m - s) / (n - m)

    for m attackers among n clients (Alg. 3): s honest clients, with the attackers a majority, are
    then expected to lie farther from the mean than they do. Where none need be, z is 0.
    """
    m = len(next(iter(own.values())))
    n = m + len(next(iter(honest.values())))
    z = deviations(n, m)
    return {
        name: (x.mean(0) - z * x.std(0, unbiased=False)).expand_as(own[name]).to(own[name])
        for name, x in honest.items()
    }


def deviations(clients: int, attackers: int) -> float:
    """Returns z, in standard deviations; at least 0, and finite."""
    supporters = max(clients // 2 + 1 - attackers, 0)
    share = (clients - attackers - supporters) / (clients - attackers)
    return max(float(norm.ppf(min(share, 1 - 1 / (clients + 1)))), 0.0)
