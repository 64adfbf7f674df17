"""The benchmark: natural federations, on which methods and references are compared and ranked."""
