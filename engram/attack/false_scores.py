"""False scores: attackers claim the best score after the first evaluation, and then the worst.

If their scores counted for more than those of others, the first round would be the one that is
picked, and training would soon be over.
"""

from engram.scoring.metrics import Metric

_FAR = 1e30  # of a metric without an end


def claimed(metric: Metric, *, first: bool) -> float:
    """Returns the score that an attacker claims."""
    low = metric.low if abs(metric.low) < _FAR else -_FAR
    high = metric.high if abs(metric.high) < _FAR else _FAR
    return float(high if first == (metric.better == "higher") else low)
