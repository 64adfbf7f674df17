"""Meta clustering of neural bandits (Meta-Ban, Sec. 7)."""
