"""The server's merge with clipping, noise, robust means, or another server step, as set."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from engram.core.checks import must
from engram.core.clip_and_noise import Walker, changes, origin_of
from engram.core.contract import SlotFault, cause_of, check_merged
from engram.core.method import FromMean, Method, Slots, Update
from engram.core.rounds import Mean, merged, received_by, weighed
from engram.core.slots import flat, mean_of
from engram.core.streams import Stream, generator
from engram.guards.accounting.calibration import noise_multiplier
from engram.guards.adaptive_clip import adaptive, adaptive_mean
from engram.guards.noise import Noise, secret_noise
from engram.guards.robust import (
    Center,
    bucketed,
    centered_clipping,
    geometric_median,
    krum,
    median,
    multi_krum,
    nearest,
    nearest_mixing,
    trimmed_mean,
)
from engram.guards.update_codec import written
from engram.settings.errors import EngramError, Refused, RunStopped
from engram.settings.experiment import Experiment
from engram.settings.protection import ProtectionSettings


class Merge:
    """The server's merge of a method.

    Attributes:
        method: The method, with the server step of the settings.
        walker: Clips and noises its updates.
        settings: The experiment.
        noise: Source of the noise of central privacy.
        by: Weights of updates in the mean: ``rows`` or ``clients``.
        combines: Whether a node may send the mean of its clients' updates in their place.
        centers: Whether a robust center stands in for the mean.
        bounded: Whether the influence of a single update is bounded, however far it lies from
            others.
    """

    def __init__(self, method: Method, walker: Walker, settings: Experiment, noise: Noise) -> None:
        self.method, self.walker, self.settings, self.noise = method, walker, settings, noise
        merge, plain = method.server.merge, settings.merge == "mean"
        self.by = "rows"  # which a server sees that takes each update
        if settings.privacy == "local":  # where clients do not say how many rows they have
            self.by = "clients"
        elif isinstance(merge, FromMean):
            self.by = merge.by if settings.privacy != "central" and plain else "clients"
        exact = settings.clip_quantile == 0 and settings.attack == settings.compress == "none"
        self.combines = isinstance(merge, FromMean) and plain and exact
        self.centers = isinstance(merge, FromMean) and not plain
        slots = [x for x in method.server.start.values() if isinstance(x, dict)]
        averages = any(walker.running & x.keys() for x in slots)  # which no clip bounds
        self.bounded = not plain or (bool(settings.update_clip) and not averages)
        self._checked, self._clips = False, bool(settings.update_clip)

    def __call__(self, server: Slots, updates: Sequence[Update], server_round: int) -> Slots:
        """Returns the server's slots after a round.

        Raises:
            RunStopped: The method's merge raises, or its first result breaks its contract.
        """
        e = self.settings
        mean: Mean = mean_of
        if e.privacy == "central" and e.aggregation == "plain":  # else its sites have added noise
            mean = partial(self._private, server, server_round)
        elif self.centers:
            mean = partial(self._center, server_round)
        elif e.merge != "mean":
            updates = self._nearest(server, updates)
        if self._clips and e.privacy != "central":  # whose mean clips by itself
            updates = [u._replace(slots=self._clipped(server, u)) for u in updates]
        try:
            after = merged(self.method, server, updates, mean)
        except Exception as error:  # anybody's method
            if isinstance(error, EngramError):
                raise
            words = f"method {e.method}, server: merge raised {cause_of(e.method, error)}"
            raise RunStopped(words) from error
        if not self._checked:
            try:
                check_merged(e.method, server, after)
            except SlotFault as fault:
                raise RunStopped(str(fault)) from fault
            self._checked = True
        return after

    def _private(
        self, server: Slots, server_round: int, updates: Sequence[Update], by: str
    ) -> Update:
        del by
        e = self.settings
        mean = partial(self.walker.private_mean, bound=e.clip)
        if e.clip_quantile:
            xi = float(self.noise(1, Stream.SERVER_NOISE, server_round, 1))
            mean = partial(adaptive_mean, self.walker, quantile=e.clip_quantile, xi=xi)
        return mean(
            server,
            updates,
            multiplier=noise_multiplier(e),
            clients=e.clients_per_round,
            normal=lambda size: self.noise(size, Stream.SERVER_NOISE, server_round),
        )

    def received(self, server: Slots, update: Update) -> Slots:
        """Returns the slots that an update's client receives; of a mean, those of all alike."""
        if update.client is None:
            return self.method.server.send(server, [])[0]
        return received_by(self.method, server, update.client)

    def unchanged(self, server: Slots, sent: Slots) -> Slots:
        """Returns the update of a client that changed nothing; ``sent`` has names and shapes."""
        received, _ = self.method.server.send(server, [])
        zeros = tree_map(lambda leaf: torch.zeros(leaf.shape, dtype=leaf.dtype), sent)
        return origin_of(self.method, received, zeros)

    def _clipped(self, server: Slots, update: Update) -> Slots:
        """Clips an update again, whether or not its clients have clipped it already.

        A mean over several clients is clipped as one: if each is within the bound, so is the mean.
        Where clients add noise after they have clipped, the bound is widened to what an honest
        update of d numbers exceeds once in 10^7 times at most: |N(0, I_d)| exceeds sqrt(d) + t with
        a probability below exp(-t^2 / 2).
        """
        e, size = self.settings, self.walker.size(update.slots)
        deviation = noise_multiplier(e) * e.clip if e.privacy == "local" else 0.0
        reach = e.clip + (deviation * (size**0.5 + 6.0) if deviation else 0.0)
        return self.walker.clip(self.received(server, update), update.slots, reach)

    def _nearest(self, server: Slots, updates: Sequence[Update]) -> Sequence[Update]:
        """Returns the updates that multi-krum takes, for a server that sees each of them.

        They are compared by the changes of models: statistics are of a client's own rows.
        """
        moved = []
        for update in updates:
            models, _ = self.walker.apart(update.slots)
            models = {s: x for s, x in models.items() if self.method.kinds[s] != "statistic"}
            moved.append(flat(changes(self.method, self.received(server, update), models)))
        return [updates[i] for i in nearest(moved, self.settings.num_malicious)]

    def _center(self, server_round: int, updates: Sequence[Update], by: str) -> Update:
        del by
        e = self.settings
        # Krum chooses clients by their parameters, which tell nothing of their statistics. The
        # others are means of variances, with weights of at least 0: so they are at least 0, too.
        center, statistics = _center(e), median if "krum" in e.merge else _center(e)
        rng = generator(e.seed, Stream.BUCKETS, server_round)
        order: list[int] = rng.permutation(len(updates)).tolist()
        buckets = partial(bucketed, size=e.bucket_size, order=order)
        return self.walker.center(
            updates, lambda x: center(buckets(x)), lambda x: statistics(buckets(x))
        )


def merge_of(
    settings: Experiment,
    method: Method,
    running: frozenset[str],
    noise: Noise = secret_noise,
) -> Merge:
    """Builds the server's merge of a method.

    Raises:
        Refused: ``server-step`` is universal, and the method's server has a step of its own.
    """
    e = settings
    if e.weighting != "paper":
        method = weighed(method, e.weighting)
    merge = method.server.merge
    if e.server_step != "replace":
        if isinstance(merge, FromMean) and merge.steps:
            expected = f"replace for {e.method}, whose server has a step of its own"
            raise Refused(must("server-step", e.server_step, expected))
        from engram.online.server_step import universal_step  # noqa: PLC0415 - numba is slow to import

        method = universal_step(method, e.server_radius, running)
    if e.clip_quantile:
        method = adaptive(method, e.clip)
    if e.compress != "none":
        method = written(e, method, running)
    return Merge(method, Walker(method, running), e, noise)


def _center(e: ProtectionSettings) -> Center:
    some = e.num_malicious
    known: dict[str, Center] = {
        "median": median,
        "geometric-median": geometric_median,
        "centered-clipping": centered_clipping,
        "trimmed-mean": partial(trimmed_mean, cut=some),
        "krum": partial(krum, malicious=some),
        "multi-krum": partial(multi_krum, malicious=some),
        "nearest-mixing": partial(nearest_mixing, malicious=some),
    }
    return known[e.merge]


def server_step_notes(e: ProtectionSettings, parameters: int) -> dict[str, Any]:
    """Returns entries of a run's results about its server step, for so many ``parameters``.

    Empty where the merged model replaces the last one. Otherwise ``server-step``,
    ``server-radius``, and whether there are base learners for ``exp-concave`` losses.
    """
    if e.server_step == "replace":
        return {}
    from engram.online.server_step import has_exp_concave  # noqa: PLC0415 - loads numba

    return {
        "server-step": e.server_step.partition(":")[0],
        "server-radius": e.server_radius,
        "exp-concave": has_exp_concave(parameters),
    }
