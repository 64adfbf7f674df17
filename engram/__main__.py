"""Starts the `engram` command, as `python -m engram` does."""

from engram.cli.__main__ import main

if __name__ == "__main__":
    main()
