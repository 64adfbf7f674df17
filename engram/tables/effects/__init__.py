"""Effects of any model: summaries, meta-analysis, robust errors, missing values."""
