"""The papers' experiments, a folder for each paper: ``engram reproduce``."""
