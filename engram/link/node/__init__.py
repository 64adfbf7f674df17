"""A node of a deployed federation: its session, handshake, worker and signatures."""
