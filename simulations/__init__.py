"""The same apps without a network: the in-process grid, the `engram` command, plots."""
