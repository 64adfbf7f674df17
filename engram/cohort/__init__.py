"""Ways to train a cohort for one round; all run the same method and give the same numbers."""
