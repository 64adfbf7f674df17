"""HOST:PORT addresses at which a process listens or is reached, with or without a proxy."""

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from engram.settings.errors import Refused

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""The names by which a machine reaches itself."""

_ASKED = "grpc_proxy"  # of gRPC alone: whoever sets it wants connections to go through it
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"


class Address(NamedTuple):
    """A host, which is a DNS name or an IP address without brackets, and a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect to it."""
        ip = as_ip(self.host)
        return self.host == "localhost" if ip is None else ip.is_loopback

    @property
    def reached_at(self) -> "Address":
        """The address at which this machine connects to a process that listens here."""
        ip = as_ip(self.host)
        if ip is None or not ip.is_unspecified:
            return self
        return self._replace(host="127.0.0.1" if ip.version == 4 else "::1")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, what: str) -> Address:
    """Reads HOST:PORT; an IPv6 address stands in brackets. ``what`` names it in errors.

    Raises:
        Refused: If it is malformed.
    """
    found = re.fullmatch(r"(\[(?P<v6>.*)\]|(?P<name>[^:\[\]]*)):(?P<port>[0-9]{1,5})", text)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise Refused(f"{what} must be HOST:PORT with a port in 1..65535, got {text!r}")
    host = check_host(found["v6"] or found["name"] or "", what)
    if (found["v6"] is not None) != (":" in host):
        raise Refused(f"{what} must have brackets around an IPv6 address only, got {text!r}")
    return Address(host, int(found["port"]))


def check_host(text: str, what: str) -> str:
    """Returns a DNS name in lower case, or an IP address in its canonical form.

    Raises:
        Refused: If it is neither a DNS name nor an IP address.
    """
    ip = as_ip(text)
    if ip is not None:
        return str(ip)
    name = text.lower()
    labels = rf"({_LABEL}\.)*(?![0-9]+$){_LABEL}"  # 1.2.3.400 is a mistyped IP address
    if len(name) > 253 or not re.fullmatch(labels, name):
        raise Refused(f"{what} must name a host by its DNS name or IP address, got {text!r}")
    return name


def as_ip(host: str) -> IPv4Address | IPv6Address | None:
    """Parses an IP address; returns None for a DNS name."""
    try:
        return None if "%" in host else ip_address(host)
    except ValueError:
        return None


def direct(environment: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """Variables of an environment without a proxy to this machine and some hosts.

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
