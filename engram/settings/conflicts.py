"""Settings that do not go together, by the facts that each needs, ends and gives.

Protections say theirs in ``Guard(...)``, and ``guards.facts.conflicts`` words a refusal;
tests/guards/unfit.txt has that of every pair.
"""

from collections.abc import Callable, Iterator, Set
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engram.core.checks import Fault
from engram.guards.facts import Fact, Part, conflicts, facts_after
from engram.scoring.survival_losses import PAIRED

if TYPE_CHECKING:
    from engram.settings.base import Method, SharedSettings

_NAMES: Final = "privacy", "merge", "aggregation", "compress", "clip", "clip_quantile", "guards"
"""Settings that name protections."""


def _is_set(shared: "SharedSettings", name: str) -> bool:
    return bool(getattr(shared, name) != type(shared).model_fields[name].default)


class _Row(NamedTuple):
    """A setting that is no protection, but bears on facts if it is set."""

    key: str
    is_set: Callable[[Any], object]
    needs: Set[Fact] = frozenset()
    ends: Set[Fact] = frozenset()
    gives: Set[Fact] = frozenset()

    def part(self, shared: "SharedSettings") -> Part:
        value = getattr(shared, self.key.replace("-", "_"))
        return Part(self.key, value, self.needs, self.ends, self.gives)


_BEFORE: Final = (
    _Row("local-epochs", lambda e: e.local_epochs, ends={Fact.SAMPLED}),
    _Row("order", lambda e: e.order == "stream", ends={Fact.SAMPLED}),
    _Row("standardize", lambda e: e.standardize == "client", ends={Fact.APART}),
    _Row("missing", lambda e: e.missing == "median", ends={Fact.APART}),
    _Row("loss", lambda e: e.loss in PAIRED, ends={Fact.APART}),
    _Row("buffer-size", lambda e: e.buffer_size, needs={Fact.MEAN}, ends={Fact.CURRENT}),
    _Row("sampling", lambda e: e.secret_cohorts, needs={Fact.CURRENT}, ends={Fact.KNOWN}),
    # A fast client would put a slower one out.
    _Row("over-selection", lambda e: e.over_selection, {Fact.CURRENT, Fact.KNOWN}, {Fact.SUM}),
    _Row("clip", lambda e: e.clip, gives={Fact.BOUNDED}),
)
_AFTER: Final = (
    _Row("server-step", lambda e: e.server_step != "replace", needs={Fact.NO_STEP}),
    _Row("clip-quantile", lambda e: e.clip_quantile, needs={Fact.NOISY}),
    _Row("bucket-size", lambda e: e.bucket_size > 1, needs={Fact.CENTERED}),
    _Row("noise-multiplier", lambda e: _is_set(e, "noise_multiplier"), ends={Fact.SOLVED}),
    _Row("epsilon", lambda e: e.epsilon, needs={Fact.SOLVED}),
    _Row("sampling", lambda e: e.secret_cohorts, needs={Fact.NOISY}),
    _Row("elsewhere", lambda e: e.elsewhere, needs={Fact.OPEN}),
    _Row("patience", lambda e: e.patience, needs={Fact.OPEN}),
    _Row("standardize", lambda e: e.standardize == "federation", needs={Fact.OPEN}),
    _Row("shards", lambda e: e.shards > 1, needs={Fact.CURRENT, Fact.KNOWN}),
    _Row("participation", lambda e: e.participation, needs={Fact.CURRENT, Fact.KNOWN}),
    # A round that stops for want of clients tells of its cohort.
    _Row("min-clients", lambda e: e.min_clients > 1, needs={Fact.KNOWN}),
    _Row("deadline", lambda e: e.deadline, needs={Fact.CURRENT}),
    _Row("attack", lambda e: e.attack != "none", needs={Fact.CURRENT}),
    _Row("clock", lambda e: e.clock, needs={Fact.SIZED}),
)


def facts_of(shared: "SharedSettings", own: "Method") -> Set[Fact]:
    """Returns the facts that hold after all settings."""
    return facts_after(own.facts, parts_of(shared, own))


def unfit(shared: "SharedSettings", own: "Method") -> Iterator[Fault]:
    """Yields a fault for each setting that does not go with others, or with the method."""
    missing = {
        Fact.BOUNDED: ("set clip", "clip"),
        Fact.NOISY: ("privacy is not central", "privacy"),
        Fact.CENTERED: ("merge is mean", "merge"),
        Fact.MASKED: ("aggregation is plain", "aggregation"),
        Fact.SOLVED: ("set another privacy, or a guard that takes noise_multiplier", "privacy"),
        Fact.MEAN: (f"that of {own.name} sees every update",),
        Fact.NO_STEP: (f"that of {own.name} does",),
        Fact.GRADIENTS: (f"those of {own.name} look at rows in other ways, too",),
    }
    counted = "clients-per-round", "bucket-size", "num-malicious"
    parts, asked = parts_of(shared, own), shared.clients_per_round
    yield from conflicts(own.facts, parts, missing, asked, counted)


def parts_of(shared: "SharedSettings", own: "Method") -> list[Part]:
    """Returns the settings that bear on facts, in the order of their acts."""
    found = [row.part(shared) for row in _BEFORE if row.is_set(shared)]
    if any(_is_set(shared, name) for name in _NAMES):
        from engram.guards.presets import at_clients, at_server  # noqa: PLC0415 - loads torch

        given, awaiting = (shared, own, shared.noise_multiplier), list[Part]()
        for key, guard in (*at_clients(*given), *at_server(*given)):
            value = guard.name if key == "guards" else getattr(shared, key.replace("-", "_"))
            ends = guard.ends | ({Fact.TRAINED} if guard.acts("leave") else set())
            facts = guard.needs, ends, guard.gives
            found.append(Part(key, value, *facts, guard.asks, guard.per))
            awaiting.append(Part(key, value, guard.awaits))
        found += awaiting
    return [*found, *(row.part(shared) for row in _AFTER if row.is_set(shared))]
