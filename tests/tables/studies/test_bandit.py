"""`engram reproduce molar-bandit`, as it is typed: results, resuming, refusals."""

import json

import numpy as np
import pytest
from scipy.stats import ttest_1samp
from typer.testing import CliRunner

from engram.cli.cli import app
from engram.settings.errors import Refused
from engram.tables.studies.bandit import ACTIVATION, POLICIES, SHOWN, regrets, summarize, worlds
from tests.samples import entry


def invoke(*arguments):
    fixed = ["reproduce", "molar-bandit", "--processes", "1"]
    return CliRunner().invoke(app, [*fixed, *map(str, arguments)])


@pytest.mark.usefixtures("drawn")
def test_it_gives_a_table_and_a_figure(tmp_path):
    out = tmp_path / "run"
    result = invoke("--horizon", 130, "--trials", 3, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found == json.loads((out / "results.json").read_text())
    assert (out / "regret.png").read_bytes().startswith(b"\x89PNG")
    rows = {(row["policy"], row["task"]): row for row in found["rows"]}
    assert len(rows) == len(POLICIES) * 4
    _, policy = POLICIES["molar"]
    played = np.array([regrets(policy, worlds(130, t), t)[:, -1] for t in range(3)])
    half = ttest_1samp(played, 0.0).confidence_interval().high - played.mean(axis=0)
    for task, m in SHOWN.items():
        row = rows["molar", task]
        assert row["activation"] == ACTIVATION[m]
        assert row["regret"] == pytest.approx(played[:, m].mean())
        assert row["interval"] == pytest.approx(half[m])
    assert rows["molar", "mean"]["regret"] == pytest.approx(played.mean())
    ratio = played.mean() / rows["ols", "mean"]["regret"]
    assert rows["molar", "mean"]["of-ols"] == pytest.approx(ratio)
    assert all(title in result.stdout for title, _ in POLICIES.values())


def test_tasks_shown_are_those_activated_most_least_and_between():
    p = ACTIVATION[list(SHOWN.values())]
    assert (p[0], p[2]) == (ACTIVATION.max(), ACTIVATION.min())
    assert p[1] == np.sort(ACTIVATION)[9]  # of twenty, one of the two in the middle


def test_one_trial_has_no_interval_and_a_ratio_to_nothing_is_none():
    rows = summarize([{"policy": name, "errors": [0.0] * 20} for name in POLICIES])
    assert len(rows) == len(POLICIES) * 4
    assert all(row["interval"] is row["of-ols"] is None for row in rows)


def test_what_cannot_be_is_refused_and_nothing_written(tmp_path):
    for arguments, message in [
        (["--horizon", 0], "horizon must be at least 1, got 0"),
        (["--trials", 0], "trials must be at least 1, got 0"),
        (["--horizon", 10**8], "trials of 100000000 rounds, 1 at once, needs"),
    ]:
        with entry(arguments):
            result = invoke(*arguments)
            assert isinstance(result.exception, Refused), result.output
            assert message in str(result.exception)
            assert list(tmp_path.iterdir()) == []
