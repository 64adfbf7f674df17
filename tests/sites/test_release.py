"""Release records: of a run of three sites, signed by each, and verified by keys alone."""

import copy
import hashlib
import json
import re
import shutil

import jsonschema
import numpy as np
import pytest

from engram.runs.release import Release, read_release, verified_release
from engram.runs.run import Run
from engram.server.run import run as run_on
from engram.settings.errors import Refused
from engram.settings.fingerprint import source_root
from engram.sites.approvals import APPROVALS, answer, requests
from engram.sites.audit import AUDIT, Audit
from engram.sites.policy import keep_policy
from engram.sites.release.site_part import row_range
from tests.sites.budgets import epsilon_of
from tests.server.nodes import NodesGrid
from tests.support import small

ROUNDS, CLIP, NOISE = 2, 0.5, 8.0
ROWS = (40, 64, 90)  # of each site
POLICY = "epsilon = 8.0\nleast-count = 7\n"


def write_rows(path, rows, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 2
    np.savez(path, x=(rng.normal(size=(rows, 3)) + y[:, None]).astype(np.float32), y=y)


@pytest.fixture
def run(tmp_path, engram):
    """A run of three sites, one of which approves it, and all of which demand a release."""
    assert engram("init-federation", "fed", "--clients", 3)[0] == 0
    (tmp_path / "nodes").mkdir()
    for client, rows in enumerate(ROWS):
        state = tmp_path / f"fed/client-{client}/state"
        state.mkdir(mode=0o700)
        (state / "policy.toml").write_text(f"{POLICY}release = true\n")
        (tmp_path / f"nodes/node-{client + 1}").symlink_to(state)
        write_rows(tmp_path / f"{client}.npz", rows, client)
    data = [f"npz:{tmp_path}/{client}.npz" for client in range(3)]
    given = {"privacy": "local", "clip": CLIP, "noise_multiplier": NOISE, "num_rounds": ROUNDS}
    given |= {"num_clients": 3, "clients_per_round": 3, "eval_every": 9, "weighting": "clients"}
    e = small(method="ditto", **given)
    run_on(NodesGrid(e, data, tmp_path / "nodes"), e, tmp_path / "runs/fed", engine="flower")
    return Run.open(tmp_path / "runs/fed")


def signed(engram, tmp_path):
    (tmp_path / "sbom.json").write_text("{}")
    (tmp_path / "audit.json").write_text('{"verdict": ["No attack here reconstructs rows."]}')
    words = ["--requester", "Dr Berg, trial 12", "--sbom", "sbom.json", "--audit", "audit.json"]
    status, _, err = engram("release", "runs/fed", "--federation", "fed/server", *words)
    assert status == 0, err
    for client in range(3):  # each on a copy of its own
        shutil.copytree("runs/fed/release", f"copy-{client}")
        status, _, err = engram("release", f"copy-{client}", "--sign", f"fed/client-{client}")
        assert status == 0, err
    copies = [f"--join=copy-{client}" for client in (2, 0, 1)]
    assert engram("release", "runs/fed", *copies)[0] == 0
    return tmp_path / "runs/fed/release"


def test_a_release(tmp_path, engram, run):
    release = signed(engram, tmp_path)
    print((release/"release.json").read_text())
    assert engram("release", "runs/fed", "--verify", "fed/server")[0] == 0
