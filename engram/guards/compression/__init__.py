"""Updates and broadcasts in fewer bytes."""
