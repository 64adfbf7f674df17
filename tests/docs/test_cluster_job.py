"""The job script for Slurm: a shell reads it, and it asks Slurm, Ray and Engram as it should."""

import os
import subprocess

import pytest

from tests.docs.test_docs import ROOT, blocks

# Each stand-in writes down its arguments. Those of srun and of Ray run what they are given then.
STANDS = {
    "scontrol": "printf 'node-%s\\n' 3 5 8",
    "srun": 'while [[ "$1" == --* ]]; do shift; done; "$@"',
    "ray": 'while [[ "$1" != -- ]]; do shift; done; shift; "$@"',
    "engram": "exit ${ENDS_WITH:-0}",
}
SLURM = {"SLURM_JOB_NODELIST": "node-[3,5,8]", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_ID": "271828"}


@pytest.fixture
def script(tmp_path):
    (text,) = blocks(ROOT / "docs" / "cluster.md", "bash")
    (tmp_path / "engram.sh").write_text(text)
    (tmp_path / "bin").mkdir()
    for name, does in STANDS.items():
        stand = tmp_path / "bin" / name
        stand.write_text(f'#!/bin/bash\necho {name} "$*" >> "{tmp_path}/asked"\n{does}\n')
        stand.chmod(0o755)
    return tmp_path / "engram.sh"


def run(script, *words, **environment):
    path = f"{script.parent}/bin{os.pathsep}{os.environ['PATH']}"
    env = os.environ | SLURM | {"SLURM_CPUS_PER_TASK": "16", "PATH": path} | environment
    return subprocess.run(["bash", script, *words], env=env, check=False).returncode


def test_a_shell_reads_it(script):
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    first, *options = script.read_text().splitlines()
    assert first == "#!/bin/bash"
    assert [line for line in options if line.startswith("#SBATCH")] == options[:6]


def test_it_starts_ray_on_each_machine_and_engram_with_its_arguments_and_ends_as_it_does(script):
    assert run(script, "ditto", "--set", "num-rounds=9") == 0
    asked = (script.parent / "asked").read_text().splitlines()
    engram = "engram run ditto --set num-rounds=9 --ray auto"
    ray = "ray symmetric-run --address node-3:6828 --min-nodes 3 --num-cpus 16"
    assert asked == [
        "scontrol show hostnames node-[3,5,8]",
        f"srun --nodes=3 --ntasks=3 {ray} -- {engram}",
        f"{ray} -- {engram}",
        engram,
    ]
    assert run(script, "ditto", ENDS_WITH="2") == 2
