"""Flower strategies, one file per family of methods. Importing this package registers them."""

from strategies import local, meta_ban, molar, molar_bandit
from strategies.base import STRATEGIES, Row, RunStrategy, strategies

__all__ = [
    "STRATEGIES",
    "Row",
    "RunStrategy",
    "local",
    "meta_ban",
    "molar",
    "molar_bandit",
    "strategies",
]
