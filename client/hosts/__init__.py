"""Hosts of clients, one file per family of methods. Importing this package registers them."""

from client.hosts import local, meta_ban, molar, molar_bandit
from client.hosts.base import HOSTS, Engine, Host, Opening, host_of, hosts

__all__ = [
    "HOSTS",
    "Engine",
    "Host",
    "Opening",
    "host_of",
    "hosts",
    "local",
    "meta_ban",
    "molar",
    "molar_bandit",
]
