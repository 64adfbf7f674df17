"""The methods: one file for each family. Importing this package makes all of them known."""

# In the order in which they are listed; a run that names no method is of the first.
from federation.methods import network  # isort: skip
from federation.methods import meta_ban, molar, molar_bandit
from federation.methods.base import METHODS, Method, family, method, unknown_method

__all__ = [
    "METHODS",
    "Method",
    "family",
    "meta_ban",
    "method",
    "molar",
    "molar_bandit",
    "network",
    "unknown_method",
]
