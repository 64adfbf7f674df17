"""Clipping by a bound that follows a quantile of the norms of clients' changes.

Andrew, Thakkar, McMahan, Ramaswamy. Differentially Private Learning with Adaptive Clipping. NeurIPS
2021, Alg. 1.
"""

import math
from typing import Final

import torch

from engram.core.method import FromMean, Method, Slots, Update
from engram.guards.changes import change_of, length_of, shortened
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.places import At

BOUND: Final = "clip"
"""Name of the server's slot that has the bound, a scalar."""

_WITHIN: Final = "within"
_RATE: Final = 0.2


def adaptive_clip(first: float, quantile: float, count: float) -> Guard:
    """Builds a clip by the server's bound C, with whether that left a change as it was.

    b_i = 1 if client i's change is within C, and 0 otherwise. Its update has ``k C (b_i - 1/2)`` as
    one more number; with the mean of these the server moves its bound by ::

        C <- C exp(-eta (share - gamma)),    share = 1/2 + mean_i (b_i - 1/2)

    One update has norm ``C sqrt(1 + k^2 / 4)`` at most, and is noised as one. With the multiplier z
    of that, the change alone has ``z_d = z sqrt(1 + k^2 / 4)``, and the sum of the b_i has noise of
    deviation ``s = z_d / k``; so ``z^-2 = z_d^-2 + (2 s)^-2``, as in Thm. 1, without more to pay.

    Args:
        first: C before the first round, > 0.
        quantile: gamma, the share of changes within the bound, in (0, 1).
        count: k, the weight of the count beside a change, in bounds, > 0.
    """

    def admit(at: At, update: Update) -> Update:
        bound = float(at.server[BOUND])
        within = length_of(change_of(at, update)) <= bound
        near = shortened(at, update, bound)
        number = torch.tensor(count * bound * (within - 0.5))
        return near._replace(slots=near.slots | {_WITHIN: number})

    def moving(method: Method) -> Method:
        server, inner = method.server, method.server.merge
        if not isinstance(inner, FromMean):
            raise ValueError("clip-quantile must be 0 for a method whose server sees every update")

        def merge(slots: Slots, mean: Update) -> Slots:
            rest, sent = dict(slots), dict(mean.slots)
            bound, within = rest.pop(BOUND), sent.pop(_WITHIN)
            after = bound * torch.exp(-_RATE * (0.5 + within / (count * bound) - quantile))
            return inner.merge(rest, mean._replace(slots=sent)) | {BOUND: after}

        start = server.start | {BOUND: torch.tensor(first)}
        return method._replace(
            server=server._replace(start=start, merge=inner._replace(merge=merge)),
            kinds={**method.kinds, BOUND: "statistic", _WITHIN: "statistic"},
        )

    reach, needs = math.hypot(1, count / 2), {Fact.EACH, Fact.MEAN, Fact.BOUNDED}
    guard = Guard("adaptive-clip", needs, alike=True, method=moving)
    return guard._replace(admit=admit, bound=lambda at: reach * float(at.server[BOUND]))


def count_of(multiplier: float, asked: int) -> float:
    """Returns k for noise on the count with a deviation of a twentieth of the clients.

    So the paper has it. With less than 20 z of them asked that would take most of the budget, or
    more than all of it: here it is z then, and z_d is 1.15 z.
    """
    deviation = max(asked / 20, multiplier)
    return 1 / math.sqrt((deviation / multiplier) ** 2 - 0.25)
