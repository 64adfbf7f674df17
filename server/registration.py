"""Makes a federation's clients known to its SuperLink, by their public keys."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from federation.credentials import read_server
from federation.errors import Refused, RunStopped
from server.launch import CONTROL, flwr_command

__all__ = ["Registration", "register_clients"]

_PATIENCE = 60.0
_IN_USE = "[code: 23]"  # Flower's PUBLIC_KEY_ALREADY_IN_USE


class Registration(NamedTuple):
    """What became of a client's key.

    Attributes:
        client: The client, such as ``client-0``.
        node_id: What Flower calls it from now on; None if the key was known already.
    """

    client: str
    node_id: int | None


def register_clients(folder: Path, *, control: str | None = None) -> Iterator[Registration]:
    """Registers every client's key with a running SuperLink, one after the other.

    Args:
        folder: The coordinator's folder.
        control: HOST:PORT of the SuperLink's Control API; by default that of
            ``superlink_command``.

    Yields:
        What became of each, in the order of the clients. A key that is known already stays as it
        is: one that was unregistered is refused for good, and its client needs a new one.

    Raises:
        Refused: The folder is not in order, or of a federation in which nobody registers.
        RunStopped: The SuperLink cannot be reached, or declines. Calling again goes on.
    """
    credentials = read_server(folder)
    if credentials.tls is None:
        raise Refused(f"{folder} is of an insecure federation: it takes clients as they come")
    if not credentials.public_keys:
        raise Refused(f"{folder / 'clients'} must have a client-N.pub for each client, has none")
    for path in credentials.public_keys:
        yield Registration(path.stem, _register(folder, path, control))


def _register(folder: Path, path: Path, control: str | None) -> int | None:
    words = ("supernode", "register", str(path), "--name", path.stem, "--format", "json")
    launch = flwr_command(folder, *words, control=control)
    try:
        done = subprocess.run(
            launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise RunStopped(f"{path.stem}: no answer for {_PATIENCE:.0f} seconds") from error
    except ValueError as error:
        said = (done.stdout + done.stderr).split()
        raise RunStopped(f"{path.stem} cannot be registered: {' '.join(said)}") from error
    if answer["success"]:
        return int(answer["node-id"])
    message = answer["error-message"].strip().splitlines()[-1]
    if _IN_USE in message:
        return None
    if "unavailable" in message:
        raise RunStopped(
            f"no SuperLink of this federation answers at {control or CONTROL}: start it with "
            f"`engram superlink {shlex.quote(str(folder))}`"
        )
    raise RunStopped(f"{path.stem} cannot be registered: {message}")
