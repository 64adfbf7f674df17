"""Multitask linear contextual bandits in doubling batches: MOLARB, and what it is set beside.

Section 3 and Appendix I of the paper that ``engram.molar`` names.
"""
