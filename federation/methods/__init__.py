"""The methods: one file for each family. Importing this package makes all of them known."""

from federation.methods import local, meta_ban, molar, molar_bandit
from federation.methods.base import METHODS, Method, family, method, unknown_method

__all__ = [
    "METHODS",
    "Method",
    "family",
    "local",
    "meta_ban",
    "method",
    "molar",
    "molar_bandit",
    "unknown_method",
]
