"""A Flower app with a model for each client."""
