"""Runs the `engram` command, and exits with the right status."""

import io
import os
import sys

from engram.settings.process_starts import end_at_once, safe_path


def main() -> None:
    """Runs the command; exits with 2 if it was refused, 1 if it failed, 130 after Ctrl-C."""
    os.umask(0o077)  # runs, exports and databases have clients' scores and models
    _read_names_as_utf8()
    _mend_streams()
    with safe_path():
        with end_at_once():
            from engram.cli.cli import call  # noqa: PLC0415 - from a safe path
        call()


def _read_names_as_utf8() -> None:
    """Starts anew in Python's UTF-8 mode where names of files are read as ASCII.

    There, the arguments of the command and the names in its files would not be equal. Python does
    so by itself in the C locale, unless it is told not to.
    """
    if sys.getfilesystemencoding() == "ascii" and not sys.flags.ignore_environment:
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONUTF8": "1"})


def _mend_streams() -> None:
    """Lets output fail by nothing but a full disk or a reader that has gone.

    A sign that a stream cannot encode becomes a question mark. A stream that is closed leads
    nowhere: else the next file that is opened would have its number, and get what is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - as long as we live
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
