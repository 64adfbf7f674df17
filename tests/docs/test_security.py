"""SECURITY.md and docs/security.md: files are signed, and logs are read, as these pages show."""

import json
import logging
import re
import shutil
import subprocess
from datetime import datetime

import pytest
import yaml

from engram.settings.fingerprint import source_root
from engram.settings.logs import VARIABLE, Lines


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")
def test_the_shown_commands_sign_files_and_notice_a_change(tmp_path):
    text = (source_root() / "SECURITY.md").read_text()
    signing, checking = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "build").mkdir()
    for name in ("engram.whl", "engram.tar", "sbom-image.json"):
        (tmp_path / "build" / name).write_text(name)

    def run(block):
        lines = re.findall(r"^\$ ((?:openssl|sha256sum) .*)$", block, re.MULTILINE)
        script = ["bash", "-e", "-c", "\n".join(lines)]
        done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert (run(signing)[0], run(checking)[0]) == (0, 0)
    assert (tmp_path / "SHA256SUMS").read_text().count("build/") == 3
    (tmp_path / "build" / "engram.whl").write_text("another")
    status, said = run(checking)
    assert (status, "build/engram.whl: FAILED" in said) == (1, True)
    run(f"$ {signing[signing.index('sha256sum') :]}".partition("\n")[0])  # signed by nobody
    status, said = run(checking)
    assert (status, "Signature Verification Failure" in said) == (1, True)


def test_the_shown_collector_reads_what_a_log_line_has(monkeypatch):
    text = (source_root() / "docs" / "security.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    parser, move = yaml.safe_load(block)["receivers"]["file_log"]["operators"]
    monkeypatch.setenv(VARIABLE, "json")
    record = logging.LogRecord("flwr.engram", logging.WARNING, "", 0, "left %s", ("out",), None)
    line = json.loads(Lines().format(record))
    fields = [parser["timestamp"]["parse_from"], parser["severity"]["parse_from"], move["from"]]
    time, *said = (line[field.removeprefix("attributes.")] for field in fields)
    assert datetime.strptime(time, parser["timestamp"]["layout"].replace("%L", "%f"))
    assert said == [parser["severity"]["mapping"]["warn"], "left out"]
