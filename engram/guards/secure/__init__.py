"""Secure aggregation: the server learns the sum of sites' updates, and no single one.

The protocol is that of Bonawitz et al. Practical Secure Aggregation for Privacy-Preserving Machine
Learning. CCS 2017, Fig. 4, in its variant against active adversaries. ``client`` and ``server``
have its two sides as pure functions over explicit state; the other modules are its parts.
"""
