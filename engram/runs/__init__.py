"""A run's folder: its record, checkpoints, results and replay."""
