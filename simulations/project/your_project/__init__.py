"""The project's network, data and method, which importing it makes known."""

from your_project import data, method, model

__all__ = ["data", "method", "model"]
