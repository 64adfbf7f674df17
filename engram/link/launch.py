"""Starts Flower's own programs with a private home and from an empty working directory."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from engram.link.proxies import direct
from engram.settings.errors import Refused
from engram.settings.process_starts import SAFE

_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
# Would open a second Control API, on all interfaces and without a password.
_UNWANTED = "FLWR_INTERNAL_GRPC_CONTROL_API"


class Launch(NamedTuple):
    """Command of a process, for ``subprocess.Popen(argv, env=env, cwd=cwd)`` or ``os.execve``."""

    argv: list[str]  # the program's absolute path and its arguments
    env: dict[str, str]  # its whole environment
    cwd: Path  # its working directory


def program(name: str, *arguments: str, home: Path, hosts: Sequence[str] = ()) -> Launch:
    """Prepares one of Flower's programs, or `engram` itself, without starting it.

    Args:
        name: Its name, such as ``flower-superlink``; it and the programs it starts are taken from
            this interpreter's environment.
        arguments: Its arguments.
        home: Its private ``FLWR_HOME``. The working directory is ``empty`` beside it, since a
            process imports from its working directory first. Both are made.
        hosts: Hosts of the federation that it connects to, besides this machine: no proxy of the
            environment is between, unless ``engram.link.proxies`` says otherwise.

    Raises:
        Refused: If the program is not installed, a folder cannot be made, or the working directory
            holds something that would be run instead of this source.
    """
    found = Path(sys.executable).parent / name
    if not found.is_file():
        raise Refused(f"{found} is not there: install Engram and Flower into this environment")
    home = home.absolute()
    cwd = home.with_name("empty")
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        cwd.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Refused(f"{error.filename} cannot be made: {error.strerror}") from error
    if (cwd / "engram").exists() or (cwd / "engram.py").exists():
        raise Refused(f"{cwd} must have no engram in it, which would run instead of ours")
    environment = {key: value for key, value in os.environ.items() if key != _UNWANTED}
    path = os.pathsep.join([str(found.parent), environment.get("PATH", os.defpath)])
    own = _QUIET | SAFE | direct(environment, *hosts) | {"FLWR_HOME": str(home), "PATH": path}
    return Launch([str(found), *arguments], environment | own, cwd)
