"""Flower strategies, one file per family of methods, imported when it is asked for."""

from engram.strategies.base import STRATEGIES, Row, RunStrategy, strategies

__all__ = ["STRATEGIES", "Row", "RunStrategy", "strategies"]
