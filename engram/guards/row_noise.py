"""Example-level differential privacy: noisy sums of clipped gradients of single rows.

A local step takes each of a client's rows with probability q, independently, and its gradient is
(Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. Deep Learning with Differential
Privacy. CCS 2016, Alg. 1) ::

    (1 / B) (sum_i g_i min(1, C / |g_i|) + z C xi),    xi ~ N(0, I)

for the rows i that were taken, g_i the gradient of row i's loss by all parameters that move, C the
bound, z the noise multiplier, and B the expected number of rows. One row more or less moves the sum
by at most C, whatever the parameters. So a step is a Poisson-subsampled Gaussian mechanism of
multiplier z and rate q, and everything that is computed from its results costs nothing more.
"""

from collections.abc import Set
from math import sqrt
from typing import Any, Final

from engram.core.method import Objective
from engram.core.tree import add_scaled, multiplied
from engram.core.types import Params, Sampled
from engram.guards.accounting.releases import Plan, Release
from engram.guards.changes import arrays_of
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.row_sums import Sums

_NEEDS: Final = frozenset({Fact.BOUNDED, Fact.GRADIENTS, Fact.SAMPLED, Fact.APART, Fact.CURRENT})
_ENDS: Final = frozenset({Fact.BOUNDED, Fact.GRADIENTS, Fact.OPEN})
_GUARD: Final = Guard("row-noise", _NEEDS, _ENDS, gives={Fact.ROWS})


def row_noise(bound: float, multiplier: float) -> Guard:
    """Builds noise on the sums of rows' clipped gradients; of a client's objective these are left.

    A method can take one gradient of a batch, and look at rows in no other way. A row's gradient
    is clipped to the norm C > 0, and the noise has the multiplier z > 0.
    """

    def rows(_: Objective, sums: Sums) -> Objective:
        def gradient(w: Params, batch: Sampled, names: Set[str] | None = None) -> Params:
            total = sums(w, batch.batch, batch.taken, bound, names)
            xi, deviation = arrays_of(batch.normal, total), multiplier * bound
            return multiplied(add_scaled(total, deviation, xi), 1 / batch.expected)

        return Objective(_refused, gradient, _refused, _refused, _refused)

    def releases(plan: Plan) -> tuple[Release, ...]:
        return (Release(multiplier, plan.row_rate, plan.steps, unit="row"),)

    return _GUARD._replace(rows=rows, releases=releases)


def row_statistics(multiplier: float) -> Guard:
    """Builds noise on a round's sums of products of clipped rows; see ``engram.tables.private``.

    The tables add it, with a deviation of z C^2, z > 0. Another turn in the place of one moves the
    sums by ``sqrt(2) C^2``, and a row more or less by C^2.
    """

    def releases(plan: Plan) -> tuple[Release, ...]:
        if plan.turns:
            return (Release(multiplier / sqrt(2), unit="row", neighbors="replaced"),)
        return (Release(multiplier, unit="row"),)

    gives = _GUARD.gives | {Fact.SOLVED}  # since nothing depends on clients' rows
    return _GUARD._replace(name="row-statistics", gives=gives, releases=releases)


def _refused(*_: Any, **_named: Any) -> Any:
    raise ValueError("where privacy is example, a step takes one gradient of its rows alone")
