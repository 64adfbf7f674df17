"""Proxies of the environment: a federation's own connections do without them."""

from collections.abc import Mapping
from typing import Final

from engram.link.addresses import LOOPBACK

_ASKED: Final = "grpc_proxy"
"""Variable of gRPC alone: whoever sets it wants a federation's connections to go through it."""


def direct(environment: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """Returns variables by which this machine and some hosts are reached without a proxy.

    gRPC takes ``http_proxy`` or ``https_proxy`` for every address, loopback too, unless
    ``no_grpc_proxy`` or else ``no_proxy`` names it. Libraries of HTTP know these in capitals, too.

    Args:
        environment: Variables, by name; what they exclude from proxies stays excluded.
        hosts: Hosts of the federation's own processes. They are reached through ``grpc_proxy``,
            where that is set; this machine never is.
    """
    own = [*LOOPBACK, *(hosts if not environment.get(_ASKED) else ())]
    plain = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    for_grpc = _with(environment.get("no_grpc_proxy") or plain, own)
    if plain.strip() == "*":  # which means all, and only by itself; gRPC does not know it
        return {"no_grpc_proxy": for_grpc}
    for_all = _with(plain, own)
    return {"no_grpc_proxy": for_grpc, "no_proxy": for_all, "NO_PROXY": for_all}


def _with(listed: str, hosts: list[str]) -> str:
    names = [name.strip() for name in listed.split(",")]
    return ",".join(dict.fromkeys([*filter(None, names), *hosts]))
