"""The science: learning rules as pure functions over explicit state."""
