"""What this project brings along: importing it makes its network, data and method known."""

from your_project import data, method, model

__all__ = ["data", "method", "model"]
