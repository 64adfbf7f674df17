"""Agreement of both sides: the experiment, the wire format, the random streams, the data."""
