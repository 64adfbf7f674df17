"""Benchmarks of speed, memory and accuracy. The tests only check that they run."""
