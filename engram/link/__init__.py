"""Real clients over gRPC: addresses, credentials, keys, and Flower's transport."""
