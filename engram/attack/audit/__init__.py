"""``engram audit``: attacks on privacy with a run's own settings, on its own clients' rows."""
