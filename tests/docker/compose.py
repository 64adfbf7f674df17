"""Compose files without Docker: read as Compose does, and run as processes of this machine."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import psutil
import typer
import yaml

from engram.cli.cli import app
from engram.settings.fingerprint import source_root
from tests.link.wire.processes import free_port

FOLDER = source_root() / "docker"


# --- Reading -----------------------------------------------------------------------------------


def load(*names, **environment):
    """Compose files, one laid over the other, with variables put in."""
    merged = {}
    for name in names:
        text = (FOLDER / name).read_text(encoding="utf-8")
        merged = _merge(merged, _interpolate(yaml.safe_load(text), environment))
    return merged


def _merge(base, over):
    if isinstance(base, dict) and isinstance(over, dict):
        merged = base | over
        for key in base.keys() & over.keys():
            replaced = key in {"command", "entrypoint", "test"}
            merged[key] = over[key] if replaced else _merge(base[key], over[key])
        return merged
    return base + over if isinstance(base, list) and isinstance(over, list) else over


def _interpolate(value, environment):
    if isinstance(value, dict):
        return {key: _interpolate(inner, environment) for key, inner in value.items()}
    if isinstance(value, list):
        return [_interpolate(inner, environment) for inner in value]
    if not isinstance(value, str):
        return value
    pieces = [  # $$ is the shell's own $
        re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda m: environment.get(m[1], m[2] or ""), piece)
        for piece in value.split("$$")
    ]
    assert not any("$" in piece for piece in pieces), f"this test does not read: {value}"
    return "$".join(pieces)


def instructions(stage=-1):
    """The instructions of a stage of the Dockerfile, the last by default, as (NAME, rest)."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    found = [line.split(maxsplit=1) for line in lines.replace("\\\n", " ").splitlines() if line]
    starts = [number for number, (name, _) in enumerate(found) if name == "FROM"]
    stages = [found[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
    return stages[stage]


def image():
    """What the image says about the processes in it: entrypoint, environment, healthcheck."""
    said = dict(instructions())
    environment = dict(re.findall(r'(\w+)=("[^"]*"|\S+)', said["ENV"]))
    healthcheck = json.loads(said["HEALTHCHECK"].partition(" CMD ")[2])
    return json.loads(said["ENTRYPOINT"]), environment, healthcheck


def mounts(service):
    """A service's volumes as (source, path in it, target, writable)."""
    for mount in service.get("volumes", []):
        if isinstance(mount, str):
            source, target, *mode = mount.split(":")
            yield source, "", target, mode != ["ro"]
        else:
            inside = mount.get("volume", {}).get("subpath", "")
            yield mount["source"], inside, mount["target"], not mount.get("read_only", False)


def command_line(service):
    """The words that a service's container starts."""
    entrypoint, _, _ = image()
    return [*service.get("entrypoint", entrypoint), *service.get("command", [])]


def engram_calls(service):
    """The words of each call of `engram` in a service: its command, or those of its script."""
    shell, _, *rest = words = [*command_line(service), ""]
    if shell != "/bin/sh":
        return [words[1:-1]] if shell == "engram" else []
    lexer = shlex.shlex(rest[0], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands = [each.split("\0") for each in re.split(r"\0[;&|]+\0?", "\0".join(lexer))]
    calls = [words[words.index("engram") + 1 :] for words in commands if "engram" in words]
    return [rest[2:-1] if call == ["$@"] else call for call in calls]


def read_options(words):
    """Reads the options of a subcommand of `engram`, and starts nothing."""
    group = typer.main.get_command(app)
    name, command, rest = group.resolve_command(click.Context(group), words)
    command.make_context(name, rest)


def healthcheck(service):
    """The words of a service's healthcheck: its own, or the image's."""
    kind, *words = service.get("healthcheck", {}).get("test", ["CMD", *image()[2]])
    return ["/bin/sh", "-c", *words] if kind == "CMD-SHELL" else words


def starts_again(service, status):
    """Whether Docker starts a container again that ended with a status.

    By itself, or with the engine: `docker stop` and `docker kill` are other matters.
    """
    return {"unless-stopped": True, "on-failure": status != 0, "no": False}[service["restart"]]


# --- Running -----------------------------------------------------------------------------------


class Processes:
    """A project's services as processes here: the same commands, on folders and ports of their own.

    Everything but the isolation is as in containers: what a service mounts is a folder below
    ``root``, shared with whoever mounts the same; ``/tmp`` is its own; a port is another free one,
    the same for all. A name of a network is this machine.
    """

    def __init__(self, root, project):
        self.root, self.services = Path(root), project["services"]
        self.ports = {9092: free_port()}
        self.running, self.more = {}, {}
        for volume in project["volumes"]:
            (self.root / volume).mkdir(parents=True)

    def up(self, name, *more):
        """Starts a service, once all that it depends on is as far as it asks."""
        service = self.services[name]
        for other, needed in service.get("depends_on", {}).items():
            if other not in self.running:
                self.up(other)
            if needed["condition"] == "service_completed_successfully":
                assert self.wait(other) == 0, self.log(other)
            elif needed["condition"] == "service_healthy":
                self.wait_healthy(other)
        self.start(name, *more)

    def start(self, name, *more):
        """Starts a service's process, with more words at its end."""
        self.more[name] = more
        place = self.root / "containers" / name
        (place / "tmp").mkdir(parents=True, exist_ok=True)
        with (place / "log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*self._here(name, command_line(self.services[name])), *more],
                cwd=place / "tmp",
                env=self._environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def run(self, name, *words):
        """Runs `engram` with other words in a service, as `docker compose exec` does."""
        line, cwd = self._here(name, ["engram", *words]), self.root / "containers" / name / "tmp"
        how = {"env": self._environment(name), "capture_output": True, "text": True}
        return subprocess.run(line, cwd=cwd, timeout=600, check=False, **how)

    def healthy(self, name):
        """Runs a service's healthcheck."""
        words = self._here(name, healthcheck(self.services[name]))
        environment = self._environment(name)
        done = subprocess.run(words, env=environment, capture_output=True, check=False, timeout=30)
        return done.returncode == 0

    def again(self, name):
        """Starts a service once more, as it was started."""
        self.start(name, *self.more[name])

    def keep(self, over, seconds=900):
        """Starts again what Docker would start again, until something is true."""
        deadline = time.monotonic() + seconds
        while not over():
            for name, process in list(self.running.items()):
                status = process.poll()
                if status is not None and starts_again(self.services[name], status):
                    self.again(name)
            assert time.monotonic() < deadline, f"it goes on:\n{self.log('run')}"
            time.sleep(0.5)

    def wait(self, name, seconds=300):
        """Waits for a service's end; returns its status."""
        try:
            return self.running[name].wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{name} goes on:\n{self.log(name)}") from None

    def wait_healthy(self, name, seconds=180):
        deadline = time.monotonic() + seconds
        while not self.healthy(name):
            ended = self.running[name].poll()
            assert ended is None, f"{name} ended with {ended}:\n{self.log(name)}"
            assert time.monotonic() < deadline, f"{name} is not healthy:\n{self.log(name)}"
            time.sleep(0.5)

    def stop(self, name, sign=signal.SIGTERM):
        """Ends a service and all that it started, as with a container, at once after 30 s."""
        process = self.running.pop(name)
        started = []
        with contextlib.suppress(psutil.NoSuchProcess):
            started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        for left in (process, *started):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        process.wait()

    def down(self):
        """Ends everything, what was started last first."""
        for name in reversed(list(self.running)):
            self.stop(name)

    def log(self, name):
        return (self.root / "containers" / name / "log").read_text(errors="replace")[-5000:]

    def path(self, name, inside):
        """Where something in a service's container is on this machine."""
        return Path(self._translate(name, inside))

    def _here(self, name, words):
        return [self._translate(name, word) for word in words]

    def _translate(self, name, text):
        own = self.root / "containers" / name
        places = {"/tmp": own / "tmp"}
        for source, inside, target, _ in mounts(self.services[name]):
            places[target] = self.root / source / inside
        known = "|".join(re.escape(place) for place in sorted(places, key=len, reverse=True))
        # In one pass, since this machine's folders may lie in /tmp, too.
        text = re.sub(rf"(?<![\w./-])({known})(?=[/\s'\"]|$)", lambda m: str(places[m[1]]), text)
        text = re.sub(r"\b(superlink|0\.0\.0\.0)(?=:9092\b)", "127.0.0.1", text)
        for theirs, ours in self.ports.items():
            text = re.sub(rf"(?<!\d){theirs}(?!\d)", str(ours), text)
        return text

    def _environment(self, name):
        said = image()[1] | self.services[name].get("environment", {})
        found = {key: self._translate(name, value) for key, value in said.items()}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return found | {"PATH": path, "PYTHONPATH": str(source_root())}  # this source, no other
