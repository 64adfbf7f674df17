"""The protocol of federated methods, the round, and what acts on every method's slots."""
