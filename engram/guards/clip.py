"""Bounded updates, and the Gaussian mechanism at each client."""

import math
from collections.abc import Mapping
from functools import partial

import torch

from engram.core.method import Slots, Update
from engram.core.slots import flat
from engram.core.streams import Stream
from engram.core.tree import add_scaled, multiplied, norm
from engram.core.types import Params
from engram.guards.accounting.releases import Release
from engram.guards.changes import acted_on, arrays_of, change_of, shortened, size_of
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.places import At
from engram.settings.errors import EngramError


def clip(bound: float) -> Guard:
    """Builds a bound C > 0 on the norm of a client's change: ``min(1, C / |u - origin|)`` of it.

    A mean over several clients is clipped as one: if each is within the bound, so is the mean. The
    server clips again, as a client may not have.
    """
    cut = partial(near, bound=bound)
    return Guard(
        "clip",
        leave=lambda at, update, _: (acted_on(at, update, cut), {}),
        admit=lambda at, update: shortened(at, update, bound),
        bound=lambda at: bound,
    )


def local_noise(bound: float, multiplier: float) -> Guard:
    """Builds the Gaussian mechanism at each client: noise of z C on a clipped change.

        min(1, C / |x|) x + z C xi,    xi ~ N(0, I),    x = u - origin

    A client whose update is not finite sends noise alone. The server bounds what arrives by what an
    honest update of d numbers exceeds once in 10^7 times at most: |N(0, I_d)| exceeds sqrt(d) + t
    with a probability below exp(-t^2 / 2). Clients do not tell their rows, and all count alike.

    Two clipped changes lie up to 2 C apart, so that an update is a release of multiplier z / 2.
    Whatever the data of a client, a score of k bounded ones moves by its metric's range at most,
    and all of them, each divided by its range, by sqrt(k). With noise of ``z sqrt(k) / 2`` ranges
    they are together such a release, too. C, the bound, and z, the multiplier, are above 0.
    """
    deviation = multiplier * bound

    def leave(at: At, update: Update, _: Slots) -> tuple[Update, Slots]:
        def noised(change: Params) -> Params:
            finite = norm(change).isfinite()
            clipped = {
                path: torch.where(finite & x.isfinite(), x, 0.0)  # 0 times infinity
                for path, x in near(change, bound).items()
            }
            xi = at.normal(size_of(change), Stream.CLIENT_NOISE)
            return add_scaled(clipped, deviation, arrays_of(xi, change))

        if len(change_of(at, update)) < len(flat(update.slots)):
            raise EngramError("running statistics have no noise: they must not leave a client")
        return acted_on(at, update, noised), {}

    def admit(at: At, update: Update) -> Update:
        size = size_of(change_of(at, update))
        return shortened(at, update, bound + deviation * (math.sqrt(size) + 6.0))

    def report(ranges: Mapping[str, float]) -> dict[str, float]:
        bounded = {name: size for name, size in ranges.items() if math.isfinite(size)}
        share = multiplier * math.sqrt(len(bounded)) / 2
        return {name: share * size for name, size in bounded.items()}

    update, gives = Release(multiplier / 2, neighbors="replaced"), {Fact.COVERED, Fact.SOLVED}
    ends = {Fact.BOUNDED, Fact.EXACT, Fact.OPEN}
    guard = Guard("local-noise", {Fact.BOUNDED}, ends, gives, alike=True, hides=True)
    return guard._replace(
        leave=leave,
        admit=admit,
        report=report,
        bound=lambda at: math.inf,
        releases=lambda plan: (update, update._replace(each="report")),
    )


def near(change: Params, bound: float) -> Params:
    """Returns ``min(1, bound / |change|) change``."""
    return multiplied(change, (bound / norm(change)).clamp(max=1.0))
