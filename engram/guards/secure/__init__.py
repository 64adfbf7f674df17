"""Secure aggregation: the server learns the sum of sites' updates, and no single one.

The protocol is that of Bonawitz et al. Practical Secure Aggregation for Privacy-Preserving Machine
Learning. CCS 2017, Fig. 4, in its variant against active adversaries. ``secure_sum`` is the guard.
Around it, ``party`` has a site's secrets, with which ``stages`` and ``masking`` answer, and
``server`` takes the masks out of a sum, whose parts ``engram.strategies.running`` collects.
"""
