"""The coordinator: the ServerApp, the roster of clients, checkpoints, the run record."""
