"""Starts the `engram` command, where our packages are not hidden by somebody else's files."""

import importlib
import sys

from engram.rooms import check_rooms


def main() -> None:
    """Runs the command; exits with 2 where a file hides one of our packages."""
    try:
        check_rooms()
    except ImportError as error:
        print(f"engram: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    importlib.import_module("engram.cli.__main__").main()


if __name__ == "__main__":
    main()
