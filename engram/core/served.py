"""The models that a method has scores of, beside the one that serves a client."""

from engram.core.method import Method, Network
from engram.core.rounds import received_by, sent_to

__all__ = ["has_common", "has_tuned"]


def has_common(method: Method, network: Network) -> bool:
    """Returns whether the server has a common model: a slot ``model`` with all parameters."""
    common, _ = sent_to(method, method.server.start, [0])
    whole: bool = common.get("model", {}).keys() == network.initial.keys()
    return whole


def has_tuned(method: Method) -> bool:
    """Returns whether the model that serves a client can be fine-tuned, and is not already."""
    received = received_by(*sent_to(method, method.server.start, [0]), 0)
    served = method.serve(received, method.client.start, True)
    return len(served.models) == 1 and not served.tuned and served.neighbors is None
