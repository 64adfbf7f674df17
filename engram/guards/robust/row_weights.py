"""A bound on the rows by which a client weighs."""

from engram.core.method import FromMean, Method
from engram.guards.guard import Guard
from engram.guards.robust.weight_limit import weight_limit


def row_weights(most: float) -> Guard:
    """Builds a ``weight_limit`` on a client's rows: ``most`` times those of the median client.

    All clients of a federation are compared, not only those of a round. In a round there are few,
    most of whom may lie by chance, and a client's weight would depend on who else is asked. Sites
    bound the weights of their own clients by the same number, before they mask or send a mean.
    """
    return Guard("row-weights", weigh=lambda rows: float(weight_limit(rows, most)))


def weighs_rows(method: Method, guard: Guard) -> bool:
    """Returns whether clients weigh by rows, and none is bound to weigh as much as others."""
    merge = method.server.merge
    # A server that takes each update sees its client's rows.
    return not guard.alike and not (isinstance(merge, FromMean) and merge.by == "clients")
