"""Settings of privacy, robust merging, compression, and simulated attacks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, Field

from engram.core.checks import Fault, clash, must
from engram.settings.errors import Refused
from engram.settings.fields import Float, Int, Settings, choice_with_number, number_in

if TYPE_CHECKING:
    from engram.settings.base import SharedSettings

_SERVER_STEP: Final = AfterValidator(choice_with_number(replace=0, universal=1e30))


class ProtectionSettings(Settings):
    """Privacy of clients, and protection of the common model from some of them."""

    merge: Literal[
        "mean",
        "median",
        "trimmed-mean",
        "krum",
        "multi-krum",
        "geometric-median",
        "centered-clipping",
        "nearest-mixing",
    ] = Field(
        "mean",
        description="what a round's models are merged into: their mean, the median or the "
        "trimmed-mean of each coordinate, (krum) the one that is nearest to most others, "
        "(multi-krum) the mean of all but num-malicious such ones, the geometric-median, "
        "(centered-clipping) a mean of changes that are clipped around the median, or "
        "(nearest-mixing) the trimmed-mean of mixtures, each of a model and all but num-malicious "
        "of the others, the nearest ones; with any but the mean every client counts alike. Where a "
        "server sees every update, there is the mean, and multi-krum, which leaves out the others",
    )
    weighting: Literal["rows", "clients", "paper"] = Field(
        "rows",
        description="what a client counts in a round's mean: its training rows (rows, as FedAvg "
        "does), the same as every other (clients), or what the method's paper says (paper)",
    )
    num_malicious: Int = Field(
        1,
        ge=0,
        description="trimmed-mean, nearest-mixing, krum, multi-krum: clients of a round that may "
        "send anything; the first two leave out as many of the lowest and of the highest values",
    )
    bucket_size: Int = Field(
        1,
        ge=1,
        description="where merge is not mean: clients whose mean counts as one, drawn anew in each "
        "round, so that clients whose data differ are not taken for malicious ones. 1: none",
    )
    max_weight: Float = Field(
        5.0,
        ge=1,
        description="largest weight of a client where weights are what clients say of themselves "
        "(rows, or rows and noise), in weights of the median client; larger ones are cut to it. "
        "1e9: no bound",
    )
    max_norm: Float = Field(
        5.0,
        ge=1,
        description="largest norm of a client's update, in norms of the round's median client; "
        "longer ones are scaled down to it. 1e9: no bound. It acts where merge is mean, clip is 0, "
        "and rows come in no order",
    )
    clip: Float = Field(
        0.0,
        ge=0,
        description="largest norm of a client's update (C); longer ones are scaled down to it, by "
        "the client and again by the server. With privacy=example, of the gradient of a row (in "
        "MOLAR and MOLARB, of the row). 0: no bound",
    )
    clip_quantile: Float = Field(
        0.0,
        ge=0,
        lt=1,
        description="central privacy: the quantile of the norms of clients' updates that the bound "
        "follows from round to round, from clip on; 0: the bound stays clip",
    )
    privacy: Literal["none", "local", "central", "example"] = Field(
        "none",
        description="differential privacy of clients: none, central (the server adds normal noise "
        "to the mean of clipped updates, all of which count alike) or local (each client adds it "
        "to its own before it leaves, and all count alike); or of a client's single rows: example "
        "(each client adds it to the sums of its rows' clipped gradients)",
    )
    noise_multiplier: Float = Field(
        1.0,
        ge=1e-6,
        description="privacy: standard deviation of the noise over clip, on one client's update "
        "(local), on the sum of all clients' (central), or on a sum over rows (example)",
    )
    epsilon: Float = Field(
        0.0,
        ge=0,
        description="privacy: the epsilon that all rounds together may cost, for which "
        "noise-multiplier is solved; 0: noise-multiplier is as given",
    )
    delta: Float = Field(
        1e-05,
        ge=1e-100,
        lt=1,
        description="privacy: the delta at which the epsilon spent is reported",
    )
    aggregation: Literal["plain", "secure"] = Field(
        "plain",
        description="what the server learns of a round's updates: each one (plain), or their sum "
        "alone (secure: clients mask theirs; clip must be set)",
    )
    secure_threshold: Float = Field(
        2 / 3,
        ge=0.5,
        lt=1,
        description="secure: the share of a round's sites above which they must stay until its "
        "end; as many of them together could unmask one, and fewer cannot",
    )
    server_step: Annotated[str, _SERVER_STEP] = Field(
        "replace",
        description="how the next model follows from a round's merged model: replace (it is the "
        "merged one) or universal (the universal ensemble, which has no step size, takes the last "
        "model less the merged one as a gradient, in a ball around the initial model of radius 10, "
        "or R of universal:R)",
    )

    @property
    def server_radius(self) -> float:
        """Radius of the ball around the initial model in which the universal step stays."""
        return number_in(self.server_step, 10.0)

    @property
    def update_clip(self) -> float:
        """The largest norm of a client's update; 0 for no bound."""
        return 0.0 if self.privacy == "example" else self.clip

    def protection_problems(self, asked: int) -> Iterator[Fault]:
        """Yields settings that no round could meet, or that would not protect anybody.

        ``asked`` is the number of clients asked in a round.
        """
        krum = 2 * self.num_malicious + 3
        trimmed = krum - 2
        least = {"trimmed-mean": trimmed, "nearest-mixing": trimmed}
        least |= {"krum": krum, "multi-krum": krum}
        if -(-asked // self.bucket_size) < (buckets := least.get(self.merge, 1)):
            attackers = f"{self.merge} with num-malicious = {self.num_malicious}"
            attackers += f" and bucket-size = {self.bucket_size}" * (self.bucket_size > 1)
            expected = f"at least {(buckets - 1) * self.bucket_size + 1} for {attackers}"
            yield clash("clients-per-round", asked, expected, "merge", "num-malicious")
        if self.bucket_size > 1 and self.merge == "mean":
            expected = "1 where merge is mean, which buckets do not change"
            yield clash("bucket-size", self.bucket_size, expected, "merge")
        if self.privacy != "none" and self.clip <= 0:
            yield clash("clip", self.clip, f"positive where privacy is {self.privacy}", "privacy")
        if self.aggregation == "secure":
            yield from self._unsummable(asked)
        if self.privacy == "central" and self.merge != "mean":
            # Its noise is calibrated to the influence of one client on a mean.
            yield clash("merge", self.merge, "mean where privacy is central", "privacy")
        if self.privacy != "central" and self.clip_quantile:
            yield clash(
                "clip-quantile", self.clip_quantile, "0 unless privacy is central", "privacy"
            )
        if self.epsilon and self.privacy == "none":
            yield clash("epsilon", self.epsilon, "0 where privacy is none", "privacy")
        default = type(self).model_fields["noise_multiplier"].default
        if self.epsilon and self.noise_multiplier != default:
            expected = f"left out where epsilon = {self.epsilon:g} is to be reached"
            yield clash("noise-multiplier", self.noise_multiplier, expected, "epsilon")

    def _unsummable(self, asked: int) -> Iterator[Fault]:
        """Yields settings that need more of clients' updates than a sum of bounded ones."""
        where = "where aggregation is secure"
        if self.clip <= 0:
            yield clash("clip", self.clip, f"positive {where}", "aggregation")
        if self.merge != "mean":
            yield clash("merge", self.merge, f"mean {where}", "aggregation")
        if self.privacy in ("local", "example"):
            expected = (
                f"none or central {where}: single updates' noise would leave the sum's bounds"
            )
            yield clash("privacy", self.privacy, expected, "aggregation")
        if self.clip_quantile:
            expected = f"0 {where}: nobody counts single updates' norms"
            yield clash("clip-quantile", self.clip_quantile, expected, "aggregation")
        if self.epsilon:
            expected = f"0 {where}: give the noise-multiplier, and the run says its epsilon"
            yield clash("epsilon", self.epsilon, expected, "aggregation")
        if asked < 2:
            yield clash("clients-per-round", asked, f"2 or more {where}", "aggregation")


_ATTACKS: Final = {"none": 0.0} | dict.fromkeys(
    [
        *("sign-flip", "scaled", "alie", "ipm", "label-flip", "backdoor"),
        *("false-rows", "false-statistics", "false-scores"),
    ],
    1e6,
)


class AttackSettings(Settings):
    """Attacks, in simulations alone."""

    attack: Annotated[str, AfterValidator(choice_with_number(**_ATTACKS))] = Field(
        "none",
        description="what attackers do, in a simulation that measures how much harm it does, and "
        "after a colon how many times as far their updates go (sign-flip:60): see the "
        "documentation's page on robustness",
    )
    attackers: Float = Field(
        0.2, ge=0, le=0.5, description="share of the clients that attack, which the seed draws"
    )

    @property
    def attack_kind(self) -> str:
        """The attack, without its scale."""
        return self.attack.partition(":")[0]

    @property
    def attack_scale(self) -> float:
        """Factor of the attackers' updates."""
        return number_in(self.attack, 1.0)

    def attack_problems(self) -> Iterator[Fault]:
        """Yields settings of attacks that do not go together."""
        if self.attack_kind == "scaled" and self.attack_scale == 1:
            yield clash("attack", self.attack, "scaled:SCALE, where SCALE is not 1")

    def refuse_attack(self) -> None:
        """Refuses attacks where clients are nodes, which Ray's workers are, too.

        Raises:
            Refused: An attack is set.
        """
        if self.attack != "none":
            expected = "none on nodes and on Ray: attacks are for --engine vectorized or sequential"
            raise Refused(must("attack", self.attack, expected))


_EXACT = ("8-bit", "4-bit")  # of which each update is an estimate by itself


class CompressionSettings(Settings):
    """Messages in fewer bytes, in both directions."""

    compress: Annotated[
        str,
        AfterValidator(
            choice_with_number(none=0, **{"8-bit": 0, "4-bit": 0}, top_k=0.5, low_rank=10**6)
        ),
    ] = Field(
        "none",
        description="how models travel, in both directions: none (as they are), 8-bit or 4-bit "
        "(rounded at random to so many bits), top-k (the largest changes alone: top-k:0.05 of an "
        "array's, by default a hundredth) or low-rank (changes as products of thin matrices, of "
        "rank 2, or low-rank:4). Clients keep what was left out, and send it later",
    )

    @property
    def encoded(self) -> bool:
        """Whether messages are in code."""
        return self.compress != "none"


def impossible_compression(shared: "SharedSettings") -> Iterator[Fault]:
    """Yields settings that fewer bytes do not go with."""
    kind = shared.compress
    if kind == "none":
        return
    if shared.aggregation == "secure":
        expected = (
            "none where aggregation is secure: only numbers of one scale can be summed masked"
        )
        yield clash("compress", kind, expected, "aggregation")
    if shared.privacy == "local":
        expected = (
            "none where privacy is local: what was left out would lengthen later updates beyond "
            "the bound by which the server tells honest noise"
        )
        yield clash("compress", kind, expected, "privacy")
    if shared.merge != "mean" and kind not in _EXACT:
        expected = (
            f"none, 8-bit or 4-bit where merge is {shared.merge}, which compares single updates: "
            f"of {kind} only their sums over rounds are near the true ones"
        )
        yield clash("compress", kind, expected, "merge")
    if shared.clock and kind not in _EXACT:
        expected = (
            "none, 8-bit or 4-bit where there is a clock: the bytes of changes depend on how many "
            "a client has missed"
        )
        yield clash("compress", kind, expected, "clock")
