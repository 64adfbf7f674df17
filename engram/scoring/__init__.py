"""Scores of clients' models: tasks, metrics, what serves a client, the best round."""
