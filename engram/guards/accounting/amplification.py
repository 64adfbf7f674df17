"""Privacy amplified by sampling, by Google's ``dp-accounting``, imported on demand.

In each round some clients are drawn in secret, and the sum of their clipped updates gets noise.

If each takes part with probability q, independently of everything, that is the Poisson-subsampled
Gaussian mechanism. Two federations are adjacent if one is the other with a client more (add or
remove one). Its privacy loss distribution gives epsilon up to rounding, which is upwards
(Doroshenko, Ghazi, Kamath, Kumar, Manurangsi. Connect the Dots: Tighter Discrete Approximations of
Privacy Loss Distributions. PoPETs 2022). Renyi accounting (Mironov, Talwar, Zhang. Renyi
Differential Privacy of the Sampled Gaussian Mechanism. 2019) is quick, and right for every delta;
its epsilon is a few percent larger.

If exactly m of n are drawn, without replacement, two federations are adjacent if one client's data
are replaced by any others, since n is public. There is Renyi accounting alone (Wang, Balle,
Kasiviswanathan. Subsampled Renyi Differential Privacy and Analytical Moments Accountant. AISTATS
2019).
"""

import math
from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any, Final

from engram.core.checks import require
from engram.settings.errors import Refused

_ORDERS: Final = (*range(2, 33), 40, 48, 64, 96, 128, 192, 256, 512)
_LARGEST: Final = 50.0  # epsilons that are worth a distribution, whose size grows with them
_GRID: Final = 5e-4  # of Renyi's epsilon: epsilon is at most half a percent too large


def amplified_epsilon(
    plain: float,
    total: float,
    sampled: Mapping[tuple[float, float], int],
    delta: float,
    *,
    replaced: bool,
) -> float:
    """Returns an epsilon of Gaussian releases, and of Gaussian releases about samples, together.

    Of Poisson samples it is the least of three upper bounds: by the privacy loss distribution
    (unless Renyi accounting finds above 50, which protects nobody), by Renyi accounting, and
    exactly without amplification. Of samples without replacement it is the lesser of the last two.
    Of an order alpha, the divergence of one release is then at most, with q = m / n (Thm. 27, with
    the minimum of Thm. 9 for each term) ::

        1 / (alpha - 1) ln(1 + q^2 C(alpha, 2) min(4 (e^eps(2) - 1), 2 e^eps(2))
            + sum over j = 3..alpha of q^j C(alpha, j)
                min(4 sqrt(B(2 floor(j/2)) B(2 ceil(j/2))), 2 e^((j - 1) eps(j))))

    where eps(j) = j / (2 z^2) is the divergence of the Gaussian mechanism with multiplier z, and
    B(l) = sum over i = 0..l of (-1)^(l - i) C(l, i) e^((i - 1) eps(i)).

    Args:
        plain: Their epsilon without amplification, exactly; > 0.
        total: The sum of mu^2 of the Gaussian releases, >= 0; 0 where others are about samples
            without replacement.
        sampled: Numbers of the others, >= 0, by multiplier and rate in (0, 1). A multiplier is the
            standard deviation of the noise over the largest influence on the noised sum, though
            the package documents it over a bound on each value's norm, half of a replacement's.
        delta: In (0, 1).
        replaced: Whether samples are without replacement.

    Raises:
        Refused: dp-accounting is not installed.
    """
    for _, rate in sampled:
        require(0 < rate <= 1, "sampling rate", rate, "in (0, 1]")
    accounting = _package()  # Renyi divergences of integer orders are quick
    relation = accounting.NeighboringRelation
    relation = relation.REPLACE_ONE if replaced else relation.ADD_OR_REMOVE_ONE
    accountant = accounting.rdp.RdpAccountant(_ORDERS, relation)
    for (multiplier, rate), releases in sampled.items():
        event = accounting.GaussianDpEvent(multiplier)
        if replaced:  # the bound depends on the ratio of their sizes alone
            size, source = rate.as_integer_ratio()
            event = accounting.SampledWithoutReplacementDpEvent(source, size, event)
        else:
            event = accounting.PoissonSampledDpEvent(rate, event)
        accountant.compose(event, releases)
    if total:
        accountant.compose(accounting.GaussianDpEvent(1 / math.sqrt(total)))
    least = min(plain, float(accountant.get_epsilon(delta)))
    if replaced or least == 0 or least > _LARGEST:
        return least
    interval = 2.0 ** math.floor(math.log2(_GRID * least))  # few different ones: they are cached
    losses = [_privacy_loss(z, q, interval).self_compose(n) for (z, q), n in sampled.items()]
    if total:
        losses.append(_privacy_loss(1 / math.sqrt(total), 1.0, interval))
    all_ = reduce(lambda one, other: one.compose(other), losses)
    return min(least, float(all_.get_epsilon_for_delta(delta)))


@lru_cache
def _privacy_loss(multiplier: float, rate: float, interval: float) -> Any:
    return _package().pld.privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=rate, value_discretization_interval=interval
    )


def _package() -> Any:
    try:
        import dp_accounting  # noqa: PLC0415 - an extra, and slow to import
        import dp_accounting.pld.privacy_loss_distribution  # noqa: PLC0415 - an extra
        import dp_accounting.rdp  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise Refused(
            "amplification by sampling needs dp-accounting: pip install 'engram[privacy]'"
        ) from error
    return dp_accounting
