"""Protections of an update: clipping, noise, accounting, robust merging, compression."""
