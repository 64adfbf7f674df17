"""The models that a method has scores of, beside the one that serves a client."""

from engram.core.method import Method, Served, Slots
from engram.core.rounds import received_by, sent_to

__all__ = ["has_common", "has_tuned", "is_mixture", "is_shifted", "is_tuned"]


def has_common(method: Method) -> bool:
    """Returns whether clients receive a common model: a slot ``model`` with all parameters."""
    received, served = _served(method)
    whole: bool = received.get("model", {}).keys() == served.models[0].keys()
    return whole


def has_tuned(method: Method) -> bool:
    """Returns whether the model that serves a client can be fine-tuned, and is not already."""
    _, served = _served(method)
    return len(served.models) == 1 and not served.tuned and served.neighbors is None


def is_mixture(method: Method) -> bool:
    """Returns whether clients are served by a mixture, whose loss weights losses of rows."""
    return _served(method)[1].weights is not None


def is_shifted(method: Method) -> bool:
    """Returns whether the model that serves a client adds a shift to its representations."""
    return _served(method)[1].shift is not None


def is_tuned(method: Method) -> bool:
    """Returns whether the model that serves a client that has trained is fine-tuned first."""
    return _served(method)[1].tuned


def _served(method: Method) -> tuple[Slots, Served]:
    common, own = sent_to(method, method.server.start, [0])
    return common, method.serve(received_by(common, own, 0), method.client.start, True)
