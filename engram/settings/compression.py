"""Settings of messages in fewer bytes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from engram.core.checks import Fault, clash
from engram.settings.fields import Settings, choice_with_number

if TYPE_CHECKING:
    from engram.settings.shared import SharedSettings

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
