"""The documented commands of a release, on a federation of three sites over gRPC."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engram.runs.run import Run
from engram.settings.fingerprint import source_root
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation
from tests.processes.test_federation import settings

pytestmark = pytest.mark.processes


def test_the_documented_release_is_signed_and_verified(tmp_path, engram):
    text = (source_root() / "docs" / "release.md").read_text(encoding="utf-8")
    begin, show, sign, *rest = re.findall(r"^\$ engram (.*)$", text, re.MULTILINE)
    (tmp_path / "sbom.json").write_text("{}")
    (tmp_path / "audit.json").write_text('{"verdict": ["No attack here reconstructs rows."]}')
    there = LoopbackFederation(tmp_path / "fed", clients=3)
    e = settings(**{"num-clients": 3, "clients-per-round": 3, "num-rounds": 2, "method": "ditto"})
    with there:
        for client in range(3):  # a policy holds from the next message on
            (tmp_path / f"fed/client-{client}/policy.toml").write_text("release = true\n")
        run_deployed(e, tmp_path / "runs/fed", there.server)
    status, _, err = engram(*shlex.split(rest[2]))
    assert (status, "demand a release" in err) == (2, True)
    assert engram(*shlex.split(begin))[0] == 0
    for client in range(3):  # at each site, on a copy that comes back
        shutil.copytree("runs/fed/release", "release")
        assert engram(*shlex.split(show))[0] == 0
        status, _, err = engram(*shlex.split(sign.replace("client-0", f"client-{client}")))
        assert status == 0, err
        Path("release").rename(f"from-{client}")
    Path("keys").mkdir()
    for name in ("registry", "ca.crt"):
        shutil.copy(there.server / name, "keys")
    training = Run.open(tmp_path / "runs/fed").config["training"]
    for line in rest:
        if "memory" in line:
            shutil.copytree("runs/fed/release", "release")
        status, _, err = engram(*shlex.split(line.replace("0123456789abcdef", training)))
        assert status == 0, (line, err)
    schema, record = source_root() / "docs/release.schema.json", "runs/fed/release/release.json"
    tool = Path(sys.executable).with_name("check-jsonschema")
    subprocess.run([tool, "--schemafile", schema, record], check=True)
