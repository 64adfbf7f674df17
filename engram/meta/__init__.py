"""Memory-based MAML for personalized federated learning, and what it is compared with."""
