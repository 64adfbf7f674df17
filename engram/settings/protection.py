"""Settings of privacy, robust merging, compression, and simulated attacks."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from engram.core.checks import Fault, clash, must
from engram.guards.registry import named_guards
from engram.settings.errors import Refused
from engram.settings.fields import Amount, Float, Int, Settings, choice_with_number, number_in

_SERVER_STEP: Final = AfterValidator(choice_with_number(replace=0, universal=1e30))


def _known_guards(text: str) -> str:
    named_guards(text)
    return text


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
    clip: Amount = Field(
        0.0,
        description="largest norm of a client's update (C); longer ones are scaled down to it, by "
        "the client and again by the server. With privacy=example, of the gradient of a row (in "
        "MOLAR and MOLARB, of the row). 0: no bound",
    )
    clip_quantile: Amount = Field(
        0.0,
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
    epsilon: Amount = Field(
        0.0,
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

    guards: Annotated[str, AfterValidator(_known_guards)] = Field(
        "",
        description="protections of your own, by their names, with commas; NAME:NUMBER for one "
        "that takes a number",
    )

    @property
    def server_radius(self) -> float:
        """Radius of the ball around the initial model in which the universal step stays."""
        return number_in(self.server_step, 10.0)


_ATTACKS: Final = "sign-flip", "scaled", "alie", "ipm", "label-flip", "backdoor"
_LIES: Final = "false-rows", "false-statistics", "false-scores"
_SCALES: Final = {"none": 0.0} | dict.fromkeys([*_ATTACKS, *_LIES], 1e6)


class AttackSettings(Settings):
    """Attacks, in simulations alone."""

    attack: Annotated[str, AfterValidator(choice_with_number(**_SCALES))] = Field(
        "none",
        description="what attackers do, in a simulation that measures how much harm it does, and "
        "after a colon how many times as far their updates go (sign-flip:60): see the "
        "documentation's page on robustness",
    )
    attackers: Amount = Field(
        0.2, le=0.5, description="share of the clients that attack, which the seed draws"
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


_COMPRESS: Final = AfterValidator(
    choice_with_number(none=0, **{"8-bit": 0, "4-bit": 0}, top_k=0.5, low_rank=10**6)
)


class CompressionSettings(Settings):
    """Messages in fewer bytes, in both directions."""

    compress: Annotated[str, _COMPRESS] = Field(
        "none",
        description="how models travel, in both directions: none (as they are), 8-bit or 4-bit "
        "(rounded at random to so many bits), top-k (the largest changes alone: top-k:0.05 of an "
        "array's, by default a hundredth) or low-rank (changes as products of thin matrices, of "
        "rank 2, or low-rank:4). Clients keep what was left out, and send it later",
    )
