"""The models of a method that are scored: the served, the common and the fine-tuned one."""

import torch
from torch.utils._pytree import tree_leaves

from engram.core.method import Served, Slots
from engram.core.slots import over_slots


def has_common(common: Slots, served: Served) -> bool:
    """Returns whether clients receive a common model: a slot ``model`` with all parameters.

    Args:
        common: Slots that all clients receive alike.
        served: The models that serve a client.
    """
    whole: bool = common.get("model", {}).keys() == served.models[0].keys()
    return whole


def has_tuned(served: Served) -> bool:
    """Returns whether the served model can be fine-tuned and is not yet."""
    return len(served.models) == 1 and not served.tuned and served.neighbors is None


def unknown(slots: Slots) -> Slots:
    """Returns slots of NaN, which stand for values that are elsewhere; see ``is_known``."""
    return over_slots(lambda leaf: torch.full_like(leaf, torch.nan), slots)


def is_known(served: Served) -> bool:
    """Returns whether a served model depends on no slot that is ``unknown``."""
    return not any(leaf.isnan().any() for leaf in tree_leaves(served) if torch.is_tensor(leaf))
