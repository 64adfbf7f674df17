"""Collaborative bandits: policies for many users, in the manner of `policy`."""
