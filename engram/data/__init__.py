"""Data sets, and the rows of them that each client holds."""
