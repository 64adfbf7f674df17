"""Networks, and users' modules, as pure functions: kinds, losses, optimizers by name."""
