"""`engram reproduce molar-bandit`, as it is typed: results, resuming, refusals."""

import json

import numpy as np
import pandas as pd
import pytest

from engram.tables.bandits.policies import molar_bandit, play_tasks
from engram.tables.studies.bandit import (
    ACTIVATION,
    FIGURES,
    POLICIES,
    read_tasks,
    regrets,
    summarize,
    table_worlds,
    tasks_shown,
    worlds,
)
from tests.studies.support import reproduce

SHOWN = tasks_shown(ACTIVATION)


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
    player = POLICIES["molar"]
    played = np.array([regrets(player, worlds(130, t), t)[:, -1] for t in range(3)])
    half = 1.96 * played.std(axis=0, ddof=1) / 3**0.5
    for task, m in SHOWN.items():
        row = rows["molar", task]
        assert row["activation"] == ACTIVATION[m]
        assert row["regret"] == pytest.approx(played[:, m].mean())
        assert row["interval"] == pytest.approx(half[m])
    assert rows["molar", "mean"]["regret"] == pytest.approx(played.mean())
    ratio = played.mean() / rows["ols", "mean"]["regret"]
    assert rows["molar", "mean"]["of-ols"] == pytest.approx(ratio)
    assert all(title in result.stdout for title, *_ in POLICIES.values())


def test_tasks_shown_are_those_activated_most_least_and_between():
    p = ACTIVATION[list(SHOWN.values())]
    assert (p[0], p[2]) == (ACTIVATION.max(), ACTIVATION.min())
    assert p[1] == np.sort(ACTIVATION)[9]  # of twenty, one of the two in the middle


def test_one_trial_has_no_interval_and_a_ratio_to_nothing_is_none():
    rows = summarize([{"policy": name, "errors": [0.0] * 20} for name in POLICIES])
    assert len(rows) == len(POLICIES) * 4
    assert all(row["interval"] is row["of-ols"] is None for row in rows)


@pytest.mark.full
@pytest.mark.usefixtures("drawn")
def test_a_tables_tasks_play_their_rows_and_the_best_constants_are_shown(tmp_path):
    rng, sizes = np.random.default_rng(0), {"a": 200, "b": 400, "c": 120}
    country = np.repeat([*sizes], [*sizes.values()])
    x = rng.normal(size=(720, 2))
    score = x @ [1.0, -2.0] + (country == "c") + rng.normal(size=720)
    table = pd.DataFrame({"age": x[:, 0], "home": x[:, 1], "country": country, "score": score})
    table.to_csv(tmp_path / "mine.csv", index=False)
    numbers = table[["age", "home", "score"]]
    scaled = (numbers - numbers.mean()) / numbers.std(ddof=0)
    drawn = table_worlds(read_tasks(tmp_path / "mine.csv", "country", "score"), 5000, 3)
    rngs = np.random.default_rng([101, 3]).spawn(3)
    for (name, size), world, own in zip(sizes.items(), drawn, rngs, strict=True):
        order, rows = own.permutation(size), scaled[country == name].to_numpy()
        x1 = np.column_stack([rows[:, :2], np.ones(size)])
        tested, played = order[size // 5 :], order[: int(0.15 * size)]
        gaps = np.abs(world.contexts[..., 0, None] - x1[played, 0]).min(axis=-1)
        np.testing.assert_allclose(gaps, 0, atol=1e-12)
        reference = np.linalg.lstsq(x1[tested], rows[tested, 2])[0]
        np.testing.assert_allclose(world.means, world.contexts @ reference)
        assert len(world.active) == 30
        assert world.active.all() == (name == "b")
    words = ("--task", "country", "--target", "score", "--trials", 2, "--figure", 5)
    out = tmp_path / "run"
    result = reproduce("molar-bandit", "--table", tmp_path / "mine.csv", *words, out=out)
    assert result.exit_code == 0, result.output
    rows = json.loads((out / "results.json").read_text())["rows"]
    means = {row["policy"]: row["regret"] for row in rows if row["task"] == "mean"}
    activation = {row["task"]: row["activation"] for row in rows}
    assert [activation[name] for name in sizes] == [0.5, 1.0, 0.3]
    assert len(means) == 1 + 4 * 5
    least = min(regret for name, regret in means.items() if name.startswith("MOLARB"))
    line = next(line for line in result.stdout.splitlines() if "MOLARB" in line)
    assert f"{least:.1f} ±" in line
    assert result.stdout.count("MOLARB") == 1


@pytest.mark.full
def test_figure_10_varies_molarbs_first_batch_threshold_and_history():
    world = worlds(130, 0)
    found = regrets(FIGURES[10]["c = 0.35, |H0| = 5, all"], world, 0)
    policy = molar_bandit(c=0.7, sigma=0.5, history="all")
    expected = play_tasks(policy, world, np.random.default_rng([102, 0]).spawn(20), first=5)
    np.testing.assert_array_equal(found, expected)
    assert len(FIGURES[10]) == 1 + 4 * 3 * 2
