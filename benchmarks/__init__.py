"""How fast, in how much memory, and against whom. The tests only check that it runs."""
