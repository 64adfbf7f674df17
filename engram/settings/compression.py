"""Settings of messages in fewer bytes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from engram.core.checks import Fault, clash
from engram.settings.fields import Float, Int, Settings

if TYPE_CHECKING:
    from engram.settings.shared import SharedSettings

_EXACT = ("8-bit", "4-bit")  # of which each update is an estimate by itself


class CompressionSettings(Settings):
    """Messages in fewer bytes, in both directions."""

    compress: Literal["none", "8-bit", "4-bit", "top-k", "low-rank"] = Field(
        "none",
        description="how models travel, in both directions: none (as they are), 8-bit or 4-bit "
        "(rounded at random to so many bits), top-k (the largest changes alone) or low-rank "
        "(changes as products of thin matrices). Clients keep what was left out, and send it later",
    )
    compress_share: Float = Field(
        0.01, gt=0, le=0.5, description="top-k: share of the changes of an array that is sent"
    )
    compress_rank: Int = Field(2, ge=1, description="low-rank: rank of the changes of a matrix")


def impossible_compression(shared: "SharedSettings") -> Iterator[Fault]:
    """Yields settings that fewer bytes do not go with."""
    kind, fields = shared.compress, CompressionSettings.model_fields
    for name, reader in (("compress_share", "top-k"), ("compress_rank", "low-rank")):
        value, default = getattr(shared, name), fields[name].default
        if kind != reader and value != default:
            key = name.replace("_", "-")
            yield clash(key, value, f"{default:g} unless compress is {reader}", "compress")
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
