"""Benchmarks of speed and memory, and races against others; ``tests/evidence`` has the rest."""
