"""Federated learning: rules that make a common model good for all, or each client's own good."""
