"""Meta clustering of neural bandits (Meta-Ban, Sec. 7), and estimates from logged rounds."""
