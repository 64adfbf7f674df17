"""A SuperLink of Flower's simulation on Ray, and apps for it."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx

from tests.link.wire.processes import PATIENCE, free_port
from tests.processes.support import wait_for
from tests.settings.test_plugins import write

BIN = Path(sys.executable).parent


class SuperLink:
    """A local simulation SuperLink of our own: `flwr run` attaches to whatever it finds."""

    def __init__(self, folder, cwd=None):
        http, control = free_port(), free_port()
        # A Ray worker's path begins with the folder it was started in: one that is empty.
        (folder / "empty").mkdir()
        self.env = os.environ | {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http),
            "FLWR_LOCAL_CONTROL_API_PORT": str(control),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_ADDRESS": "local",  # Flower would join any cluster that runs on this machine
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        command = f"--simulation --insecure --isolation subprocess --host 127.0.0.1 --port {http}"
        words = [*command.split(), "--control-api-address", f"127.0.0.1:{control}"]
        how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": self.env}
        self.process = subprocess.Popen(
            [BIN / "flower-superlink", *words], cwd=cwd or folder / "empty", **how
        )

        def answers():
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://127.0.0.1:{http}/health").is_success

        wait_for(answers, "the SuperLink")

    def run(self, app, config, nodes=2):
        """Runs an app to its end; returns what was printed."""
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        words = ["run", app, "--stream", "--run-config", config, "--federation-config", federation]
        how = {"capture_output": True, "text": True, "timeout": PATIENCE}
        done = subprocess.run([BIN / "flwr", *words], env=self.env, check=False, **how)
        return done.stdout + done.stderr

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.process.terminate()
        self.process.wait(PATIENCE)


def toml(settings):
    return " ".join(f"{key}={_quoted(value)}" for key, value in settings.items())


def _quoted(value):
    """Returns a value for Flower, which reads no escaped quotes."""
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def write_app(folder, module, config):
    """Writes the pyproject.toml of an app whose components a module has."""
    project = '[project]\nname = "mine"\nversion = "1.0.0"\n[tool.uv]\npackage = false\n'
    components = f'serverapp = "{module}:server"\nclientapp = "{module}:client"\n'
    app = f'[tool.flwr.app]\npublisher = "me"\n[tool.flwr.app.components]\n{components}'
    write(folder / "pyproject.toml", f"{project}{app}[tool.flwr.app.config]\n{config}")


def run_several(superlink, folder, configs):
    """Does several experiments in one run of Flower; returns what was printed."""
    write_app(folder / "app", "several", 'experiments = ""\n')
    shutil.copy(Path(__file__).with_name("several.py"), folder / "app")
    (folder / "experiments.json").write_text(json.dumps(configs))
    config = toml({"experiments": f"{folder}/experiments.json"})
    return superlink.run(folder / "app", config, nodes=3)
