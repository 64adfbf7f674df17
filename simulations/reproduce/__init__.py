"""The papers' experiments: ``engram reproduce``."""
