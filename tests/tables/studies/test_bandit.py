"""`engram reproduce molar-bandit`, as it is typed: results, resuming, refusals."""

import json

import numpy as np
import pytest

from engram.tables.studies.bandit import ACTIVATION, POLICIES, SHOWN, regrets, summarize, worlds
from tests.studies.support import reproduce


@pytest.mark.full
@pytest.mark.usefixtures("drawn")
def test_it_gives_a_table_and_a_figure(tmp_path):
    out = tmp_path / "run"
    result = reproduce("molar-bandit", "--horizon", 130, "--trials", 3, "--json", out=out)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found == json.loads((out / "results.json").read_text())
    assert (out / "regret.png").read_bytes().startswith(b"\x89PNG")
    rows = {(row["policy"], row["task"]): row for row in found["rows"]}
    assert len(rows) == len(POLICIES) * 4
    _, policy = POLICIES["molar"]
    played = np.array([regrets(policy, worlds(130, t), t)[:, -1] for t in range(3)])
    half = 1.96 * played.std(axis=0, ddof=1) / 3**0.5
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
