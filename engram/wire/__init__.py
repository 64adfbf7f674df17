"""Messages as records: parts, checksums, tensors and the roster."""
