"""Operations on slots, and pieces that methods are made of."""

from collections.abc import Callable, Mapping, Sequence, Set
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from engram.core.method import Kind, Served, Slots, Update
from engram.core.types import Params


def kinds_of(*, models: str = "", differences: str = "", statistics: str = "") -> dict[str, Kind]:
    """Returns the kind of each slot; names are separated by spaces."""
    found: dict[str, Kind] = dict.fromkeys(models.split(), "model")
    found |= dict.fromkeys(differences.split(), "difference")
    return found | dict.fromkeys(statistics.split(), "statistic")


def pick(x: Params, names: Set[str]) -> Params:
    """Returns the parameters of these names."""
    return {name: leaf for name, leaf in x.items() if name in names}


def zeros(x: Params) -> Params:
    """Returns zeros like these parameters."""
    return {name: torch.zeros_like(leaf) for name, leaf in x.items()}


def over_slots(function: Callable[..., Tensor], *slots: Slots) -> Slots:
    """Applies a function to each array of slots that have the same names, in any order."""
    found: Slots = {}
    for name, slot in slots[0].items():
        each = [other[name] for other in slots]
        found[name] = function(*each) if isinstance(slot, Tensor) else over_slots(function, *each)
    return found


def flat(slots: Mapping[str, Any]) -> Params:
    """Returns the tensors of nested dictionaries, such as slots, by path: ``slot/name``."""
    found = Params()
    for key, x in slots.items():
        if isinstance(x, Tensor):
            found[key] = x
            continue
        for path, leaf in flat(x).items():
            found[f"{key}/{path}"] = leaf
    return found


def unflat(arrays: Params, like: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Undoes ``flat``.

    Slots that are empty in ``like`` are restored as empty ones, and arrays that it has come in its
    order, so that sums over them are rounded alike: a file gives them in any order.
    """
    found: dict[str, Any] = {s: {} for s, x in like.items() if isinstance(x, dict) and not x}
    known = filter(arrays.__contains__, flat(like))
    for path in dict.fromkeys([*known, *arrays]):
        *outer, name = path.split("/")
        place = found
        for key in outer:
            place = place.setdefault(key, {})
        place[name] = arrays[path]
    return found


def sends(*names: str) -> Callable[[Slots, Sequence[int]], tuple[Slots, Slots]]:
    """Builds a ``Server.send`` that sends these slots to all clients alike."""
    return lambda server, clients: ({name: server[name] for name in names}, {})


def keep_all(received: Slots, kept: Slots, batch: object) -> Slots:
    """``Client.begin`` of a client that works on all received and kept slots as they are."""
    del batch
    return received | kept


def replace(server: Slots, mean: Update) -> Slots:
    """Merge that replaces the server's slots by the means of those that clients send."""
    return server | mean.slots


def mean_of(updates: Sequence[Update], by: str) -> Update:
    """Returns the mean of updates.

    Weights are ``rows``, ``clients``, or ``weight``, as ``FromEach`` has them.

    Raises:
        ValueError: If there are no updates, or their weights add up to 0.
    """
    weights: list[float] = [*map(attrgetter(by), updates)]
    total = sum(weights)
    if not total > 0:
        raise ValueError(f"the updates' total weight must be positive, got {total}")
    shares = [weight / total for weight in weights]

    def mean(first: Tensor, *others: Tensor) -> Tensor:
        found = first * shares[0]
        for share, leaf in zip(shares[1:], others, strict=True):
            found.add_(leaf, alpha=share)
        return found

    each = map(attrgetter("slots", "rows", "clients"), updates)
    slots, rows, clients = zip(*each, strict=True)
    return Update(over_slots(mean, *slots), sum(rows), sum(clients))


class Tally(NamedTuple):
    """A running mean over local steps, kept in a slot.

    Attributes:
        zero: Zeros in the shapes of the averaged arrays.
    """

    zero: Params

    @property
    def start(self) -> Params:
        """The slot before the first step."""
        return self.zero | {"steps": next(iter(self.zero.values())).new_zeros(())}

    def add(self, tally: Params, seen: Params) -> Params:
        """Returns the slot after a step that observed ``seen``."""
        return {n: leaf + seen.get(n, 1.0) for n, leaf in tally.items()}

    def mean(self, tally: Params) -> Params:
        """Returns the mean; zero if no step was taken."""
        return {n: tally[n] / tally["steps"].clamp(min=1.0) for n in self.zero}


def scatter(rows: Params, clients: Sequence[int], values: Params) -> Params:
    """Replaces the entries of these clients in arrays with a leading client axis, (N, ...)."""
    at = torch.tensor(clients, dtype=torch.int64)
    return {n: leaf.index_copy(0, at, values[n].to(leaf)) for n, leaf in rows.items()}


def or_common(rows: Params, common: Params, known: Tensor, clients: Sequence[int]) -> Params:
    """Returns the entries of these clients; the common arrays for those not in ``known`` (N,)."""
    mine = known[list(clients)] > 0
    return {
        n: torch.where(mine.view(-1, *[1] * common[n].ndim), leaf[list(clients)], common[n])
        for n, leaf in rows.items()
    }


# --- Served models -------------------------------------------------------------------------------


def serve_own(received: Slots, kept: Slots, trained: bool) -> Served:
    """Serves a client by its own model; by the common one, fine-tuned, before it has trained."""
    return Served((kept["own"],)) if trained else Served((received["model"],), tuned=True)


def has_common(common: Slots, served: Served) -> bool:
    """Returns whether clients receive a common model: a slot ``model`` with all parameters."""
    whole: bool = common.get("model", {}).keys() == served.models[0].keys()
    return whole


def has_tuned(served: Served) -> bool:
    """Returns whether the served model can be fine-tuned and is not yet."""
    return len(served.models) == 1 and not served.tuned and served.neighbors is None


def unknown(slots: Slots) -> Slots:
    """Returns slots of NaN, in place of values on other machines; see ``is_known``."""
    return over_slots(lambda leaf: torch.full_like(leaf, torch.nan), slots)


def is_known(served: Served) -> bool:
    """Returns whether a served model depends on no slot that is ``unknown``."""
    return not any(leaf.isnan().any() for leaf in tree_leaves(served) if torch.is_tensor(leaf))
