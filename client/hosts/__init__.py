"""Hosts of clients: a file for each family of methods. Importing this package makes them known."""

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
