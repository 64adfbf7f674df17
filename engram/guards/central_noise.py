"""Central differential privacy: noise on a round's mean. McMahan et al. ICLR 2018, Alg. 1."""

from collections.abc import Sequence

from engram.core.method import Update
from engram.core.slots import flat, mean_of, unflat, zeros
from engram.core.streams import Stream
from engram.core.types import Params
from engram.guards.accounting.releases import Plan, Release
from engram.guards.changes import arrays_of, change_of, changed, is_running, size_of
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.places import At


def central_noise(multiplier: float) -> Guard:
    """Builds noise of z > 0 bounds C, divided by the clients asked, on a round's mean.

        origin + (1 / n) (sum_i (u_i - origin) + z C xi),    xi ~ N(0, I)

    n is the number of clients that were *asked*: one whose reply is missing counts as one that
    changed nothing, and there is noise even if nobody replied. So adding or removing a client moves
    the sum by at most C, the bound of what stands before this guard, whoever else replies: the
    Gaussian mechanism with multiplier z. In cohorts of a fixed size another client would take its
    place, and move the sum by up to 2 C.
    """

    def gather(at: At, updates: Sequence[Update]) -> list[Update]:
        n, alike = at.asked, [u._replace(client=None) for u in updates]
        total = _sum_of(at, alike)
        xi = arrays_of(at.normal(size_of(total), Stream.SERVER_NOISE), total)
        for path, leaf in total.items():
            leaf.add_(xi[path], alpha=multiplier * at.bound).div_(n)
        mean = changed(at, alike[0], total)
        if at.running and any(u.clients for u in updates):
            means = flat(mean_of(updates, "clients").slots)
            rest = {p: x for p, x in means.items() if is_running(at.method, at.running, p)}
            mean = mean._replace(slots=unflat(flat(mean.slots) | rest, mean.slots))
        return [mean._replace(rows=float(n), clients=float(n))]

    def releases(plan: Plan) -> tuple[Release, ...]:
        moved = 2 if plan.neighbors == "replaced" else 1
        return (Release(multiplier / moved, plan.rate, neighbors=plan.neighbors),)

    needs, gives = {Fact.MEAN, Fact.SUM, Fact.BOUNDED, Fact.CURRENT}, {Fact.NOISY, Fact.SOLVED}
    guard = Guard("central-noise", needs, ends={Fact.OPEN}, gives=gives, alike=True)
    return guard._replace(gather=gather, releases=releases)


def _sum_of(at: At, updates: Sequence[Update]) -> Params:
    """Returns the sum of changes, each as often as the update has clients."""
    total = zeros(change_of(at, updates[0]))
    for update in updates:
        for path, leaf in change_of(at, update).items():
            total[path].add_(leaf, alpha=update.clients)
    return total
