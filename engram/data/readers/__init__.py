"""Readers of data sets, one for each format."""
