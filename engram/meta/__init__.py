"""Memory-based MAML for personalized federated learning, and the methods it is compared with."""
