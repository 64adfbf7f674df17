"""The methods: one file for each family. Importing this package makes all of them known."""

# In the order in which they are listed; a run that names no method is of the first.
from engram.settings import network  # isort: skip
from engram.bandits.federation import meta_ban
from engram.settings.base import METHODS, Method, family, method, unknown_method
from engram.tables.federation import molar
from engram.tables.survival.federation import cox

__all__ = ["METHODS", "Method", "family", "method", "unknown_method"]
__all__ += ["cox", "meta_ban", "molar", "network"]
