"""Multitask linear contextual bandits in doubling batches: MOLARB, and baselines.

Section 3 and Appendix I of the paper that ``engram.tables`` names.
"""
