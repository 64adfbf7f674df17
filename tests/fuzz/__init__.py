"""A fuzzer: corrupted input at every entry point of the platform."""
