"""Privacy amplified by Poisson sampling, by Google's ``dp-accounting``, imported on demand.

In each round a client takes part with probability q, independently of everything, and the sum of
the clipped updates gets normal noise: the Poisson-subsampled Gaussian mechanism. Two federations
are adjacent if one is the other with a client more (add or remove one).

Its privacy loss distribution gives epsilon up to rounding, which is upwards (Doroshenko, Ghazi,
Kamath, Kumar, Manurangsi. Connect the Dots: Tighter Discrete Approximations of Privacy Loss
Distributions. PoPETs 2022). Renyi accounting (Mironov, Talwar, Zhang. Renyi Differential Privacy of
the Sampled Gaussian Mechanism. 2019) is quick, and right for every delta; its epsilon is a few
percent larger.
"""

import math
from functools import lru_cache
from typing import Any, Final

from engram.checks import require
from engram.privacy import epsilon
from federation.errors import Refused

__all__ = ["poisson_epsilon"]

_ORDERS: Final = (*range(2, 33), 40, 48, 64, 96, 128, 192, 256, 512)
_LARGEST: Final = 50.0  # epsilons that are worth a distribution, whose size grows with them
_GRID: Final = 5e-4  # of Renyi's epsilon: epsilon is at most half a percent too large


@lru_cache
def poisson_epsilon(multiplier: float, rate: float, releases: int, delta: float) -> float:
    """Returns an epsilon of a number of Poisson-subsampled Gaussian releases.

    It is the least of three upper bounds: by the privacy loss distribution (unless Renyi accounting
    finds above 50, which protects nobody), by Renyi accounting, and exactly without amplification.

    Args:
        multiplier: Standard deviation of the noise, divided by the norm by which a client can move
            the noised sum; > 0.
        rate: Probability q with which a client takes part in a release; in (0, 1].
        releases: Number of releases; >= 0.
        delta: In (0, 1).

    Raises:
        ValueError: If a value is out of range.
        Refused: If dp-accounting is not installed.
    """
    require(0 < rate <= 1, "sampling rate", rate, "in (0, 1]")
    plain = epsilon(multiplier, releases, delta)
    if rate == 1 or plain == 0:
        return plain
    accounting = _package()  # Renyi divergences of integer orders are quick
    accountant = accounting.rdp.RdpAccountant(_ORDERS)
    gaussian = accounting.GaussianDpEvent(multiplier)
    accountant.compose(accounting.PoissonSampledDpEvent(rate, gaussian), releases)
    least = min(plain, float(accountant.get_epsilon(delta)))
    if least == 0 or least > _LARGEST:
        return least
    interval = 2.0 ** math.floor(math.log2(_GRID * least))  # few different ones: they are cached
    one = _privacy_loss(multiplier, rate, interval)
    return min(least, float(one.self_compose(releases).get_epsilon_for_delta(delta)))


@lru_cache
def _privacy_loss(multiplier: float, rate: float, interval: float) -> Any:
    """Returns the privacy loss distribution of one release, on a grid of this interval."""
    return _package().pld.privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=rate, value_discretization_interval=interval
    )


def _package() -> Any:
    """Returns ``dp_accounting``, with its accountants."""
    try:
        import dp_accounting  # noqa: PLC0415 - an extra, and slow to import
        import dp_accounting.pld.privacy_loss_distribution  # noqa: PLC0415 - likewise
        import dp_accounting.rdp  # noqa: PLC0415 - likewise
    except ModuleNotFoundError as error:
        raise Refused(
            "sampling=poisson needs dp-accounting: pip install 'engram[privacy]'"
        ) from error
    return dp_accounting
