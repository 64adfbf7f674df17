"""Scores of clients' models: tasks, metrics, served models, the best round."""
