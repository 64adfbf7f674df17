"""Commands to a running SuperLink, through Flower's own ``flwr`` and its Control API."""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any

from engram.link.addresses import CONTROL
from engram.link.server.launch import Launch, flwr_command
from engram.settings.errors import RunStopped, one_line

_PATIENCE, _SAY = 60.0, 8.0  # seconds for an answer; until it is said that one is waited for
_COLOR = re.compile(r"\x1b\[[\d;]*m")  # which FORCE_COLOR asks for, as notebooks set it
_CODE = re.compile(r"\[code: (\d+)\]")
_BOX = re.compile(r"((?:^[│|].*[│|]\n)+)[╰+]", re.MULTILINE)  # its lines, down to the lower edge


class Declined(RunStopped):
    """The SuperLink has refused a command.

    Attributes:
        codes: Flower's numbers of its reasons.
    """

    codes: Sequence[str] = ()


def ask(
    folder: Path, *words: str, control: str | None = None, what: str, patience: float = 0.0
) -> dict[str, Any]:
    """Runs ``flwr WORDS --format json``; returns its answer.

    ``what`` begins the message of an error; ``patience`` is how many seconds to wait for a
    SuperLink that is still starting. ``control`` is as for ``superlink_command``.

    Raises:
        Refused: If the folder is not in order.
        RunStopped: If the SuperLink cannot be reached.
        Declined: If it answers with an error.
    """
    launch = flwr_command(folder, *words, "--format", "json", control=control)
    end = time.monotonic() + patience
    while True:
        answer = _run(launch, what)
        if answer["success"]:
            return answer
        message = reason(answer["error-message"])
        if "unavailable" not in message:
            declined = Declined(f"{what}: {message}")
            declined.codes = _CODE.findall(message)
            raise declined
        if time.monotonic() >= end:
            raise RunStopped(
                f"no SuperLink of this federation answers at {control or CONTROL}: start it with "
                f"`engram superlink {shlex.quote(str(folder))}`"
            )
        time.sleep(0.5)


def reason(said: str) -> str:
    """Extracts from Flower's output, in one line, why its command failed.

    That is the text of the last error box, or the last line if there is no box.
    """
    lines = [line.strip() for line in _COLOR.sub("", said).splitlines()]
    if boxes := _BOX.findall("\n".join(lines)):
        lines = [line[1:-1].strip() for line in boxes[-1].splitlines()]
        return one_line(" ".join(filter(None, lines)))
    return one_line(next(filter(None, reversed(lines)), "it said nothing"))


def _run(launch: Launch, what: str) -> dict[str, Any]:
    waits = f"engram: {what}: waiting for the SuperLink to answer"
    told = Timer(_SAY, print, [waits], {"file": sys.stderr})
    told.start()
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
        answer: dict[str, Any] = json.loads(_COLOR.sub("", done.stdout))
    except subprocess.TimeoutExpired as error:
        raise RunStopped(f"{what}: no answer for {_PATIENCE:.0f} seconds") from error
    except ValueError as error:
        said = " ".join((done.stdout + done.stderr).split())
        raise Declined(f"{what}: {said}") from error
    finally:
        told.cancel()
    return answer
