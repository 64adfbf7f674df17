"""Hosts of clients, one file per family of methods, imported when it is asked for."""

from engram.client.hosts.base import HOSTS, Exchanging, Host, Opening, Summed, host_of, hosts
from engram.cohort.trainer.trainer import Engine

__all__ = ["HOSTS", "Engine", "Exchanging", "Host", "Opening", "Summed", "host_of", "hosts"]
