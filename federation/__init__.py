"""What both sides agree on: the experiment, the wire format, the random streams, the data."""
