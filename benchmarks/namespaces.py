"""A federation whose nodes are in network namespaces of their own, with links that can be cut.

The SuperLink and the coordinator are in a namespace that this process enters, and nobody else is.
Each node is in one of its own, with a pair of virtual interfaces between them: that of the node
is ``10.77.N.2``, and its way to the SuperLink at ``10.77.0.1`` is the other, ``linkN``. A link that
is down loses whatever is sent, in both directions, and neither side is told, as when a cable is
pulled. Linux has this, for root.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

from engram.simulations.loopback import LoopbackFederation

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of unshare(2)
_TOOLS = ("ip", "nsenter", "unshare")


def enter_namespace() -> bool:
    """Moves this thread, and those that it starts, into a new network namespace.

    Returns:
        Whether it is there: not without Linux, its tools, or the right to it.
    """
    if not all(map(shutil.which, _TOOLS)) or ctypes.CDLL(None).unshare(_NEW_NETWORK):
        return False
    _ip("link", "set", "lo", "up")
    _ip("address", "add", f"{LinkedFederation.host}/32", "dev", "lo")
    return True


class LinkedFederation(LoopbackFederation):
    """A federation of resident nodes behind links; ``enter_namespace`` comes first."""

    host = "10.77.0.1"

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self._inside: dict[str, subprocess.Popen[bytes]] = {}  # a process in each namespace

    def stop(self) -> None:
        """Ends all processes, and with those that hold them namespaces and links."""
        super().stop()
        for process in self._inside.values():
            process.kill()
            process.wait()
        self._inside.clear()

    def cut(self, name: str) -> None:
        """Cuts a node off."""
        _ip("link", "set", _link(name), "down")

    def mend(self, name: str) -> None:
        """Lets a node that was cut off come back."""
        _ip("link", "set", _link(name), "up")

    def _command(self, name: str) -> list[str]:
        command = super()._command(name)
        if name == "superlink":
            return command
        if name not in self._inside:
            self._inside[name] = _hold()
            _join(name, self._inside[name])
        return [*_within(self._inside[name]), *command]


def _hold() -> subprocess.Popen[bytes]:
    """Starts a process that holds a namespace of its own."""
    hold = ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"]
    process = subprocess.Popen(hold, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # once it is there
    return process


def _join(name: str, process: subprocess.Popen[bytes]) -> None:
    """Makes the link of a node, whose namespace a process holds."""
    link, net = _link(name), f"10.77.{int(name.rpartition('-')[2]) + 1}"
    _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
    _ip("address", "add", f"{net}.1/24", "dev", link)
    _ip("link", "set", link, "up")
    for words in (
        ["link", "set", "lo", "up"],
        ["address", "add", f"{net}.2/24", "dev", "eth0"],
        ["link", "set", "eth0", "up"],
        ["route", "add", "default", "via", f"{net}.1"],
    ):
        subprocess.run([*_within(process), "ip", *words], check=True)


def _within(process: subprocess.Popen[bytes]) -> list[str]:
    return [str(shutil.which("nsenter")), f"--net=/proc/{process.pid}/ns/net", "--"]


def _link(name: str) -> str:
    return f"link{name.rpartition('-')[2]}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
