"""Multitask learning and bandits with robust statistics (MOLAR, Sec. 4 and App. J)."""
