"""Faults of containers: the compose federation on a Docker engine, against a calm run.

``make containers`` builds the image, starts the federation and disturbs it: processes are killed,
containers stopped and cut off, the engine started again. In the end the model and every client's
memory must be those of the same run in one undisturbed process. Where there is no engine, one comes
from Debian's packages (``engine.sh``); one that is there already is never stopped.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.chaos import compare, settings
from engram.runs.run import Run
from engram.settings.experiment import Experiment
from engram.settings.fingerprint import source_root
from engram.simulations.engine import simulate
from tests.docker.compose import load

MOST = 1_500_000_000  # bytes of an image for CPUs
ROUNDS = 200
CLIENTS = ("client-0", "client-1", "client-2")
ENGINE = Path(__file__).parent / "engine.sh"
PROJECT = "engram-faults"
# A container's process 1 is Docker's; the shell's command line has all words of its script.
_KILL = """
import os, sys
for each in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
    with open(f"/proc/{each}/cmdline") as file:
        line = file.read().replace("\\0", " ")
    if sys.argv[1] in line and each not in {1, os.getpid()} and "/bin/sh" not in line:
        sys.exit(os.kill(each, 9))
sys.exit(f"no process has {sys.argv[1]}")
"""


class Fault(NamedTuple):
    """A disturbance of the federation."""

    name: str
    inflict: Callable[["Federation"], Any]
    own_engine: bool = False  # needs an engine that may be stopped


class Federation:
    """The compose file's federation, with a run that needs every client in every round."""

    def __init__(self, folder: Path, own_engine: bool, environ: dict[str, str]) -> None:
        self.folder, self.own_engine, self.environ = folder, own_engine, environ
        run = load("compose.yml")["services"]["run"]["command"]
        run += [
            word for key, value in settings(ROUNDS).items() for word in ("--set", f"{key}={value}")
        ]
        self._seen = 0
        self._more = folder / "compose.json"
        self._more.write_text(json.dumps({"services": {"run": {"command": run}}}))

    def docker(self, *words: str, check: bool = True) -> str:
        """Runs ``docker``; returns what it prints."""
        done = subprocess.run(
            ["docker", *words],
            env=self.environ, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"docker {' '.join(words)}: {done.stderr[-2000:]}")
        return done.stdout

    def compose(self, *words: str, check: bool = True) -> str:
        """Runs ``docker compose`` with the project's file."""
        files = ("--file", str(source_root() / "docker" / "compose.yml"), "--file", str(self._more))
        return self.docker("compose", "--project-name", PROJECT, *files, *words, check=check)

    def engine(self, action: str) -> None:
        """Stops, cuts or starts the engine."""
        subprocess.run([ENGINE, action], env=self.environ, check=True, timeout=600)

    def kill(self, service: str, words: str) -> None:
        """Kills the first process in a service whose command line has some words (SIGKILL)."""
        self.compose("exec", "--no-TTY", service, "python3", "-c", _KILL, words)

    def rounds(self) -> int:
        """Returns how many rounds the run has recorded, as far as one can look."""
        script = "wc -l < /results/run/metrics.jsonl"
        said = self.compose("exec", "--no-TTY", "run", "sh", "-c", script, check=False)
        self._seen = max(self._seen, int(said or 0))
        return self._seen

    def wait(self, rounds: int, seconds: float = 900) -> None:
        """Waits until so many rounds are recorded."""
        start = time.monotonic()
        while self.rounds() < rounds:
            if time.monotonic() - start > seconds:
                raise RuntimeError(
                    f"no round in {seconds:.0f} s:\n{self.compose('logs', '--tail=20')}"
                )
            time.sleep(1)

    def down(self) -> list[str]:
        """Returns the services that do not run."""
        running = self.compose("ps", "--services", "--status", "running", check=False).split()
        return sorted({"server", "run", *CLIENTS} - set(running))


def _cut_off(federation: Federation) -> None:
    container = federation.compose("ps", "--quiet", "client-0").strip()
    federation.docker("network", "disconnect", f"{PROJECT}_default", container)
    time.sleep(20)
    federation.docker("network", "connect", f"{PROJECT}_default", container)


def _freeze(federation: Federation) -> None:
    federation.compose("pause", "server")
    time.sleep(20)
    federation.compose("unpause", "server")


def _start_engine_after(action: str) -> Callable[[Federation], None]:
    def inflict(federation: Federation) -> None:
        federation.engine(action)
        federation.engine("start")

    return inflict


def _stop_and_up(federation: Federation) -> None:
    federation.compose("kill", "client-2")
    federation.compose("up", "--detach")


FAULTS = (
    Fault("server killed", lambda f: f.kill("server", "engram superlink")),
    Fault("coordinator killed", lambda f: f.kill("run", "simulations.coordinator")),
    Fault("engram run killed", lambda f: f.kill("run", "engram run")),
    Fault("client killed", lambda f: f.kill("client-0", "engram node")),
    Fault("client's container killed, then up", _stop_and_up),
    Fault("server and run restarted", lambda f: f.compose("restart", "server", "run")),
    Fault("client cut off for 20 s", _cut_off),
    Fault("server frozen for 20 s", _freeze),
    Fault("engine restarted", _start_engine_after("stop"), own_engine=True),
    Fault("engine restarted again", _start_engine_after("stop"), own_engine=True),
    Fault("power cut", _start_engine_after("cut"), own_engine=True),
)


def run(federation: Federation, say: Callable[[str], Any] = print) -> bool:
    """Runs the disturbed federation and the calm one; returns whether they agree."""
    calm, found = federation.folder / "calm", federation.folder / "found"
    start = time.monotonic()
    federation.compose("up", "--detach")
    federation.wait(2)
    say(f"first round after {time.monotonic() - start:.0f} s")
    say("| fault | next rounds recorded after | services down |\n|---|---|---|")
    left_down, begun = set[str](), time.monotonic()
    for fault in FAULTS:
        if fault.own_engine and not federation.own_engine:
            continue
        start = time.monotonic()
        federation.rounds()
        fault.inflict(federation)
        federation.wait(federation.rounds() + 2)
        left_down.update(down := federation.down())
        say(f"| {fault.name} | {time.monotonic() - start:.0f} s | {', '.join(down) or 'none'} |")
    say(f"{federation.rounds()} rounds recorded after the last fault")
    federation.wait(ROUNDS + 1, seconds=3600)
    federation.compose("stop")
    federation.compose("cp", "run:/results/run", str(found))
    for client in CLIENTS:
        (federation.folder / client).mkdir()
        federation.compose("cp", f"{client}:/state", str(federation.folder / client / "state"))
    # Client by client, as nodes train: see ``benchmarks.chaos``.
    simulate(Experiment.from_config(settings(ROUNDS) | {"participation": str(found)}), calm)
    outcome = compare(federation.folder, calm, found, ROUNDS, {}, time.monotonic() - begun)
    left_out = sum(bool(row.get("absent")) for row in Run.open(found).rows())
    say(f"{outcome}; rounds with a client absent: {left_out}")
    return outcome.unharmed and not left_down


def main() -> int:
    """Builds, disturbs and compares; returns the status of the command."""
    environ = dict(os.environ)
    asked = ["docker", "version", "--format", "{{.Server.Version}}"]
    given = bool(shutil.which("docker")) and not subprocess.run(asked, check=False).returncode
    place = Path(environ.setdefault("ENGRAM_DOCKER", "/tmp/engram-docker"))
    if given:
        build = ["docker", "build", "--file", "docker/Dockerfile", "--tag", "engram", "."]
        arguments = {key: environ[key] for key in ("BASE_IMAGE", "TORCH_INDEX") if key in environ}
        for key, value in {"TORCH": "cpu", **arguments}.items():
            build[2:2] = ["--build-arg", f"{key}={value}"]
        subprocess.run(build, cwd=source_root(), check=True)
    else:
        for action in ("get", "start", "image"):
            subprocess.run([ENGINE, action], env=environ, check=True)
        said = subprocess.run(
            [ENGINE, "env"], env=environ, check=True, capture_output=True, text=True
        )
        environ |= dict(line.split("=", 1) for line in said.stdout.splitlines())
    folder = place / "faults"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    federation = Federation(folder, not given, environ)
    size = int(federation.docker("image", "inspect", "--format", "{{.Size}}", "engram"))
    print(f"the image has {size / 1e9:.2f} GB, at most {MOST / 1e9:.2f}")
    try:
        agree = run(federation)
    finally:
        federation.compose("down", "--volumes", check=False)
        if not given:
            federation.engine("remove")
    return 0 if agree and size <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
