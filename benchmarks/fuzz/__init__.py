"""Cases that nobody thought of: spoilt input, at every point where something enters."""
