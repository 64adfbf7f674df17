"""`engram reproduce meta-ban`: worlds, tuning, tables, pictures."""

import csv
import json

import numpy as np
import pytest

from engram.bandits.studies import trials as bandits
from engram.bandits.studies.environments import EnvironmentSpec, draw_environment
from engram.bandits.studies.methods import runs_at_once
from engram.bandits.studies.study import (
    recovery_lines,
    said,
    simplest_first,
    summarize,
    summarize_runs,
)
from engram.bandits.studies.trials import choose, group_recovery, run_trial, true_groups
from tests.samples import entry
from tests.studies.support import reproduce

COLUMNS = ("user", "item", "rating")

LINEAR = EnvironmentSpec("linear-groups", (), COLUMNS, "data")
FEW = ("random", "linucb-ind", "meta-ban")


def few(*names):
    return [part for name in names or FEW for part in ("-m", name)]


def tell(*news):
    """Listens to nothing."""


# --- Trials ------------------------------------------------------------------------------------


def test_runs_at_once_fit_the_memory():
    drawn = draw_environment(LINEAR, 2000, 0)
    huge = drawn._replace(dim=10_000, users=10_000)
    for name in ["meta-ban", "neural-ucb-one", "neural-ucb-ind", "linucb-ind"]:
        with entry(name):
            assert runs_at_once(name, drawn) >= 8
            assert runs_at_once(name, huge) == (1 if name != "linucb-ind" else 8)


def test_worlds_are_those_that_were_named_and_drawn_by_their_seeds():
    for name in ["digits", "digits-groups", "linear-groups", "cosine-groups"]:
        with entry(name):
            spec = EnvironmentSpec(name, (), COLUMNS, "data")
            drawn, same, other = (draw_environment(spec, 20, seed) for seed in (5, 5, 6))
            assert (drawn.users, drawn.arms) == (20 if "digits" in name else 30, 10)
            assert (drawn.expected_rewards is not None) == name.endswith("groups")
            for t in reversed(range(20)):  # a round is a function of the seed and its number
                for one, two in zip(same.round(t), drawn.round(t), strict=True):
                    assert np.array_equal(one, two)
            assert not np.array_equal(drawn.round(7).arms, other.round(7).arms)


def test_the_setting_with_the_least_regret_over_all_worlds_is_chosen():
    regrets = {0.1: (1.0, 9.0), 1.0: (4.0, 5.0), 10.0: (6.0, 6.0)}
    rows = [
        {"method": "club", "setting": {"alpha": alpha}, "errors": [0.0, regret]}
        for alpha, pair in regrets.items()
        for regret in pair
    ]
    assert choose(rows) == {"club": {"alpha": 1.0}}


def test_true_groups_are_those_who_expect_the_same():
    expected = np.array([[0.2, 0.5, 0.2, 0.55], [0.1, 0.1, 0.1, 0.1]])
    assert true_groups(expected, 1).tolist() == [[False, True, False, False], [True] * 4]
    assert true_groups(expected, 0).tolist() == [[True, False, True, False], [True] * 4]


def test_recovery_by_hand():
    true = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], dtype=bool)
    found = np.array([[1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]], dtype=bool)
    exact, precision, recall = group_recovery(found, true)
    assert exact.tolist() == [True, False, False, False]
    assert precision.tolist() == [1, 1 / 2, 1, 1]
    assert recall.tolist() == [1, 1 / 3, 0, 3 / 4]


# --- Reports -----------------------------------------------------------------------------------


def row(method, seed, *regrets, **more):
    rounds = [1, 5, 10]
    return {"method": method, "setting": {}, "seed": seed, "rounds": rounds, "ms": 2.0} | {
        "errors": list(regrets),
        **more,
    }


def test_tables_by_hand():
    groups = {name: [1.0, 0.5, 0.25] for name in bandits.RECOVERY}
    rows = [
        row("meta-ban", 0, 1, 2, 3.0, **groups),
        row("meta-ban", 1, 1, 2, 5.0, **groups),
        row("linucb-ind", 0, 1, 2, 2.0),
        row("linucb-ind", 1, 1, 2, 6.0),
        row("random", 0, 1, 5, 10.0),
        row("random", 1, 1, 4, 6.0),
    ]
    random, linear, own = simplest_first(summarize(rows))
    assert [random["method"], linear["method"], own["method"]] == list(FEW)
    assert (random["meta-ban-less"], linear["meta-ban-less"]) == (2, 1)
    assert (own["regret"], own["seeds"], own["of-random"]) == (4.0, 2, 0.5)
    assert own["sd"] == pytest.approx(2**0.5)
    assert own["exact"] == {"first": 1.0, "last": 0.25}
    (line,) = recovery_lines([own, random, linear])
    assert "exactly right 1.00, 0.25" in line
    assert summarize_runs(rows[:1])[0]["sd"] is None


def test_paired_differences_by_hand():
    """Gaps of 3, 5 and 7: mean 5, s.e. 2 / sqrt(3), and the t quantile of two degrees, 4.303."""
    rows = [row("meta-ban", seed, 0, 10 * seed, 100.0 * seed) for seed in range(3)]
    rows += [row("club", seed, 0, 10 * seed, 100.0 * seed + 3 + 2 * seed) for seed in range(3)]
    own, club = summarize(rows)
    assert club["rounds"] == [1, 5, 10]
    assert club["regrets"] == pytest.approx([0, 10, 105])
    *early, (mean, low, high) = club["over-meta-ban"]
    assert [tuple(gap) for gap in early] == [(0, 0, 0)] * 2
    assert (mean, high - mean, mean - low) == pytest.approx((5, *[4.3027 * 2 / 3**0.5] * 2), 1e-4)
    assert club["over-least"] == club["over-meta-ban"][-1]
    assert own["over-meta-ban"] == [(0, 0, 0)] * 3
    (alone,) = summarize(rows[3:4])
    assert (alone["over-meta-ban"], alone["regret"]) == (None, 3)


def compared(**gaps):
    """Rows of policies whose regret is that of Meta-Ban, 100, and gaps in ten worlds."""
    rng = np.random.default_rng(0)
    noise = rng.permutation(np.linspace(-1, 1, 10))
    rows = [row("meta-ban", seed, 0, 1, 100.0) for seed in range(10)]
    for name, gap in gaps.items():
        rows += [
            row(name.replace("_", "-"), seed, 0, 1, 100 + gap + noise[seed]) for seed in range(10)
        ]
    return said(simplest_first(summarize(rows)))


def test_a_winner_is_named_only_where_intervals_exclude_zero():
    words = compared(random=50, linucb_ind=5)
    assert words.startswith("Meta-Ban is best: its mean regret is below every other policy's")
    words = compared(random=50, linucb_ind=0.2)
    assert words.startswith("No policy is surely the best: Meta-Ban has the lowest mean regret")
    assert (
        "LinUCB-IND is simpler than Meta-Ban, and enough as far as these worlds can tell" in words
    )
    words = compared(random=50, linucb_ind=-5, club=-3)
    assert words.startswith("LinUCB-IND is best")


@pytest.mark.parametrize(("horizon", "rounds"), [(500, [50, 100, 200, 500]), (3, [1, 2, 3])])
def test_regrets_are_shown_after_a_tenth_and_so_on(horizon, rounds):
    (trial,) = run_trial(LINEAR, horizon, "random", [({}, 0)], False, tell)
    (found,) = summarize([trial])
    assert found["rounds"] == rounds
    at = np.searchsorted(trial["rounds"], rounds)
    assert found["regrets"] == np.array(trial["errors"])[at].tolist()


# --- As it is typed ----------------------------------------------------------------------------


@pytest.mark.usefixtures("drawn")
def test_it_gives_a_table_and_figures(tmp_path):
    out = tmp_path / "run"
    size = ["--rounds", 40, "--seeds", 2]
    words = ["linear-groups", *size, *few(), "--ablation", "nu", "--json"]
    result = reproduce("meta-ban", *words, out=out)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found == json.loads((out / "results.json").read_text())
    assert [each["method"] for each in found["rows"]] == list(FEW)
    assert [each["setting"]["nu"] for each in found["ablation"]] == [1.1, 2.0, 5.0, 10.0]
    for name in ("regret.png", "differences.png", "nu.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    for text in ("Meta-Ban", "LinUCB-IND", "random", "core a round", "exactly right"):
        assert text in result.stdout
    own = found["rows"][-1]
    assert own["rounds"] == [4, 8, 16, 40]
    assert own["regrets"][-1] == own["regret"]
    chosen = {"alpha", "gamma"}
    assert own["setting"].keys() == chosen
    tuned = json.loads((out / "tune-linucb-ind-1.json").read_text())
    assert {each["seed"] for each in tuned} == {1000, 1001}  # others than those reported


def test_without_the_groups_being_known_nothing_is_said_of_them(tmp_path):
    table = tmp_path / "ratings.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["who", "what", "stars"])
        rng = np.random.default_rng(0)
        for user in range(60):
            writer.writerows((user, item, rng.integers(1, 6)) for item in rng.permutation(80)[:60])
    arguments = [table, "--columns", "who,what,stars", "--rounds", 20, "--seeds", 1, *few()]
    result = reproduce("meta-ban", "ratings", *arguments, out=tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "exactly right" not in result.stdout
