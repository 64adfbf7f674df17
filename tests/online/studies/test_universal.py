"""`engram reproduce universal`: games played by hand, exponents, tables, pictures."""

import json
import math

import numpy as np
import pytest

from engram.online.descent import ogd
from engram.online.play import game_regrets, play_game, saddle_game
from engram.online.studies.curvature_games import METHODS, run_match
from engram.online.studies.universal import exponent, summarize, tables
from tests.samples import entry

FEW = ["logistic", "linear", "bilinear-honest"]


def played(setting, horizon=40, seed=1):
    return run_match(setting, horizon, seed, lambda *far: None)


def of(rows, method, scale=1.0):
    (row,) = [row for row in rows if (row["method"], row["scale"]) == (method, scale)]
    return row


# --- Matches ---------------------------------------------------------------------------------


def test_in_games_both_regret_or_one_does():
    game = saddle_game(np.random.default_rng([301, 1]), curvature=1.0)
    learner = ogd(game.domain, gradient_bound=3.0)
    for honest in (True, False):
        with entry(honest):
            rows = played("curved-honest" if honest else "curved-dishonest")
            rounds = np.array(rows[0]["rounds"])
            xs, ys = play_game(game, learner, learner if honest else None, 40)
            expected = game_regrets(game, xs[:, 0], ys[:, 0], rounds)
            if honest:
                expected += game_regrets(game.transposed(), ys[:, 0], xs[:, 0], rounds)
            np.testing.assert_allclose(of(rows, "ogd")["errors"], expected, atol=1e-9)


def test_a_match_has_all_methods_and_scales():
    told = []
    rows = run_match("matrix-honest", 12, 0, lambda *far: told.append(far))
    expected = {(name, scale) for name, method in METHODS.items() for scale in method.scales}
    assert {(row["method"], row["scale"]) for row in rows} == expected
    assert len(rows) == len(expected) == 4 + 12 + 17
    assert told == [(i, 6) for i in range(7)]
    for row in rows:
        assert np.isfinite(row["errors"]).all()
        assert min(row["errors"]) >= -1e-9  # both players' regret is a duality gap
        assert row["rounds"][-1] == 12


# --- Reports ---------------------------------------------------------------------------------


def test_the_exponent_of_a_power_and_by_hand():
    for power in [0.5, 1.0, -0.25, 0.0]:
        with entry(power):
            rounds = np.unique(np.geomspace(1, 5000, 40).round())
            # Only the last tenfold counts.
            regret = np.where(rounds >= 500, 3 * rounds**power, 100.0)
            assert exponent(rounds, regret) == pytest.approx(power, abs=1e-12)
    # log r over log t through (1, 0), (2, 1), (3, 5), in units of log 2: the slope is 5 / 2.
    assert exponent([2, 4, 8], np.array([1.0, 2.0, 32.0])) == pytest.approx(2.5)


def test_regret_that_is_not_positive_has_no_exponent():
    for regret in [[5.0, -1.0, 2.0], [5.0, 0.0, 2.0], [5.0, 1.0, -2.0]]:
        assert exponent([2, 100, 200], np.array(regret)) is None
    assert exponent([7], np.array([1.0])) is None


def row(method, seed, scale, errors, setting="linear"):
    at = {"setting": setting, "seed": seed, "rounds": [1, 10, 100]}
    return {**at, "method": method, "scale": scale, "errors": errors}


def done():
    """Two seeds, in which the best scale of OGD is 2, though it is not for either alone."""
    rows = []
    for seed, last in enumerate(({0.5: 1.0, 1.0: 9.0, 2.0: 3.0}, {0.5: 9.0, 1.0: 2.0, 2.0: 3.0})):
        for name, method in METHODS.items():
            for scale in method.scales:
                end = last.get(scale, 50.0) if len(method.scales) > 1 else 10.0 + 4 * seed
                rows.append(row(name, seed, scale, [1.0, end / 10, end]))
    return rows


def test_a_summary_by_hand():
    rows = {each["method"]: each for each in summarize(done())}
    assert rows.keys() == {*METHODS, "ogd-tuned", "ons-tuned"}
    assert (rows["ogd"]["regret"], rows["ogd"]["scale"]) == (5.5, 1.0)
    assert (rows["ogd-tuned"]["regret"], rows["ogd-tuned"]["scale"]) == (3.0, 2.0)
    assert not rows["ogd-tuned"]["at-end"]
    assert rows["ogd-tuned"]["standard-error"] == 0
    # 10 and 14: their variance is 8, over two seeds; and regret grew tenfold with t.
    assert rows["usc"]["regret"] == 12.0
    assert rows["usc"]["standard-error"] == pytest.approx(2.0)
    assert rows["usc"]["exponent"] == pytest.approx(1.0)


def test_the_best_scale_at_an_end_is_marked():
    rows = [
        each | {"errors": [1.0, 1.0, each["scale"]]}
        for each in done()
        if each["seed"] == 0 and each["method"] in METHODS
    ]
    found = {each["method"]: each for each in summarize(rows)}
    assert found["ogd-tuned"]["at-end"]
    assert found["ogd-tuned"]["scale"] == 2**-7
    assert not found["ogd"]["at-end"]
    assert found["usc"]["standard-error"] is None
    cells = [next(iter(column.cells)) for column in tables(summarize(rows))[0].columns]
    assert "0.00!*" in cells  # the least of its row, too


# --- The command -----------------------------------------------------------------------------


@pytest.mark.usefixtures("drawn")
def test_it_gives_tables_and_figures(tmp_path, monkeypatch, capsys):
    from engram.cli.__main__ import main

    out = tmp_path / "run"
    words = ["universal", *FEW, "--horizon", "30", "--seeds", "2", "--processes", "1", "--json"]
    monkeypatch.setattr("sys.argv", ["engram", "reproduce", *words, "--out", str(out)])
    main()
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])
    assert found == json.loads((out / "results.json").read_text())
    assert len(found["rows"]) == len(FEW) * 8
    for each in found["rows"]:
        assert math.isfinite(each["regret"])
        assert each["standard-error"] > 0
    for text in ("Alg.1", "MetaGrad", "random linear", "bilinear, honest", "exponent"):
        assert text in printed
    for name in ("regret.png", "games.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    first = json.loads((out / "linear-1.json").read_text())
    assert first == played("linear", 30)
