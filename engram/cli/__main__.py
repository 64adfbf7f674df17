"""Runs the `engram` command, and exits with the right status."""

import io
import logging
import os
import signal
import sys
import time
import warnings
from typing import TYPE_CHECKING

from engram.settings.process_starts import end_at_once, safe_path

if TYPE_CHECKING:
    from click import NoSuchOption

_RESIDENT = {"node", "superlink"}  # Docker restarts them at once, whatever their exit status
_PAUSE = "ENGRAM_REFUSAL_PAUSE"  # whole seconds that they wait before exiting; set in the image


def main() -> None:
    """Runs the command; exits with 2 if it was refused, 1 if it failed, 130 after Ctrl-C."""
    os.umask(0o077)  # runs, exports and databases have clients' scores and models
    _read_names_as_utf8()
    _mend_streams()
    with safe_path():
        _main()


def _main() -> None:
    with end_at_once():
        import errno

        import click

        from engram.cli.cli import app
        from engram.core.machine import cores
        from engram.settings.errors import EngramError, Refused, one_line
    os.environ.setdefault("OMP_NUM_THREADS", str(cores()))  # OpenMP knows affinities, but no quotas
    try:
        _log_to_stderr()
        if status := app(standalone_mode=False):  # typer's status after Ctrl-C
            raise SystemExit(status)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except click.exceptions.Abort:
        raise SystemExit(130) from None
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        raise SystemExit(2) from None
    except click.NoSuchOption as error:
        _end(one_line(_without(error), longest=2000), error.exit_code)
    except click.ClickException as error:
        _end(one_line(error.format_message(), longest=2000), error.exit_code)
    except EngramError as error:
        _end(str(error), 2 if isinstance(error, Refused) else 1)
    except MemoryError:
        _end("memory ran out: use fewer rows, a smaller memory-budget, or a larger machine", 1)
    except OSError as error:
        named = error.errno == errno.ENAMETOOLONG  # the user's fault: our own names are short
        where = f"{error.filename or 'output'}: {error.strerror}" if error.strerror else str(error)
        _end(one_line(where), 2 if named else 1)


def _without(error: "NoSuchOption") -> str:
    """Returns the words for an unknown option, and for a setting that is given as one."""
    from engram.settings.experiment import default_config
    from engram.settings.fields import called_here, key_of

    word = key_of(error.option_name.lstrip("-"))
    settings = {key.rpartition(".")[2] for key in default_config()}
    takes = error.ctx is not None and any("--set" in each.opts for each in error.ctx.command.params)
    found = called_here(word)
    if takes and found in settings:
        return f"{error.message} Settings are given by --set: did you mean --set {found}=VALUE?"
    return error.format_message()


def _end(message: str, status: int) -> None:
    print(f"engram: {message}", file=sys.stderr)
    pause = os.environ.get(_PAUSE, "")
    if status == 2 and _RESIDENT.intersection(sys.argv[1:2]) and pause.isdecimal():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda signum, frame: os._exit(status))
        print(f"engram: it would be refused again; ending in {pause} s", file=sys.stderr)
        time.sleep(int(pause))
    raise SystemExit(status) from None


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


def _log_to_stderr() -> None:
    """Prints the platform's warnings plainly; Flower's own handler shows Flower's.

    Where semaphores are missing, the command does without them, and says so itself.
    """
    ours = logging.getLogger("flwr.engram")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("engram: %(message)s"))
    ours.handlers = [handler]
    ours.propagate = False
    ours.setLevel(logging.WARNING)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*joblib will operate in serial mode")
    warnings.showwarning = _show_warning


def _show_warning(
    message: Warning | str, category: type[Warning], *place: object, **more: object
) -> None:
    """Prints a library's warning as one line, without its place in the library's source."""
    from engram.settings.errors import one_line

    del place, more
    text = " ".join(f"{category.__name__}: {message}".split())
    print(f"engram: {one_line(text)}", file=sys.stderr)


if __name__ == "__main__":
    main()
