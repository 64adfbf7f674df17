"""Secret cohorts: chances, secrecy, rounds without clients, and what is claimed for them."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from engram.core.method import Update
from engram.core.slots import flat
from engram.core.streams import Stream
from engram.guards.accounting.client_epsilon import spent_by_client
from engram.guards.noise import secret_noise, simulated_noise
from engram.guards.secret_samples import poisson_cohort, secret_cohort, subset_cohort
from engram.runs.run import Run
from engram.server import run as coordinator
from engram.settings.errors import RunStopped
from engram.simulations.engine import simulate
from engram.strategies.running.rounds import Rounds
from engram.strategies.running.screening import TrainReplies
from engram.wire.checksums import checked, summed
from tests.epsilons import poisson_epsilon, subset_epsilon
from tests.samples import entry
from tests.support import grid, small, trainer

POISSON = {"privacy": "central", "clip": 0.1, "noise_multiplier": 2.0, "sampling": "poisson"}
SUBSET = POISSON | {"sampling": "without-replacement"}
KINDS = pytest.mark.parametrize("kind", [POISSON, SUBSET], ids=["poisson", "without-replacement"])


def cohorts(rate, count=400, clients=200):
    noise = simulated_noise(3)
    return [poisson_cohort(rate, r, clients, noise) for r in range(1, count + 1)]


def test_each_client_is_drawn_by_itself_with_the_same_chance():
    drawn = np.zeros((400, 200))
    for i, cohort in enumerate(cohorts(0.1)):
        assert cohort == sorted(set(cohort))
        drawn[i, cohort] = 1
    # Sizes are binomial: mean 20, variance 18; bounds of five standard errors.
    sizes = drawn.sum(1)
    assert sizes.mean() == pytest.approx(20, abs=5 * (18 / 400) ** 0.5)
    assert sizes.var() == pytest.approx(18, abs=5 * 18 * (2 / 400) ** 0.5)
    assert abs(drawn.mean(0) - 0.1).max() < 5 * (0.09 / 400) ** 0.5
    pairs = np.corrcoef(drawn[:, :50].T) - np.eye(50)
    assert abs(pairs).max() < 6 / 400**0.5


def test_without_replacement_as_many_are_drawn_each_time_and_all_as_often():
    drawn = np.zeros((2000, 30))
    for i in range(2000):
        cohort = subset_cohort(6, i + 1, 30, simulated_noise(3))
        assert cohort == sorted(set(cohort))
        drawn[i, cohort] = 1
    assert (drawn.sum(1) == 6).all()
    # Counts have covariances 2000 (m/n) (1 - m/n) (1, or -1/(n-1)), so that their chi-square
    # statistic is (1 - m/n) n/(n-1) times one of n-1 degrees of freedom.
    counts = drawn.sum(0)
    found = counts.mean() + (counts - counts.mean()) / (0.8 * 30 / 29) ** 0.5
    assert chisquare(found).pvalue > 1e-3
    pairs = (drawn.T @ drawn)[np.triu_indices(30, 1)]  # each in 2000 (6 * 5) / (30 * 29)
    assert pairs.mean() == pytest.approx(2000 * 30 / 870)
    assert abs(pairs - pairs.mean()).max() < 5 * pairs.mean() ** 0.5


@KINDS
def test_nobody_takes_the_place_of_who_is_absent(kind):
    e, noise = small(**kind, clients_per_round=8), simulated_noise(3)
    lost = 0
    for r in range(1, 30):
        whole, less = (secret_cohort(e, r, 20, noise, absent=gone) for gone in ((), {5, 7}))
        assert less == [client for client in whole if client not in {5, 7}]
        lost += len(whole) - len(less)
    assert lost > 0


@KINDS
def test_clients_that_never_train_are_not_drawn_and_lower_nobodys_chance(kind):
    e, unseen = small(**kind, clients_per_round=8, unseen_clients=4), {0, 3, 9, 19}
    noise = simulated_noise(3)
    drawn = [secret_cohort(e, r, 20, noise, unseen=unseen) for r in range(1, 400)]
    assert all(unseen.isdisjoint(cohort) for cohort in drawn)
    sizes = [len(cohort) for cohort in drawn]
    if e.sampling == "poisson":  # variance 16 / 4
        assert np.mean(sizes) == pytest.approx(8, abs=5 * (4 / 399) ** 0.5)
    else:
        assert set(sizes) == {8}


def test_everybody_is_drawn_at_rate_one():
    assert poisson_cohort(1.0, 1, 9, simulated_noise(0)) == [*range(9)]
    assert subset_cohort(9, 1, 9, simulated_noise(0)) == [*range(9)]


@KINDS
def test_a_secret_cohort_is_another_one_each_time(kind):
    e = small(**kind, clients_per_round=10)
    first, second = (secret_cohort(e, 1, 200, secret_noise) for _ in range(2))
    assert first != second


def test_simulations_repeat_cohorts_and_the_normal_numbers_are_those_of_the_stream():
    normal = simulated_noise(3)(200, Stream.COHORT, 1)
    # Phi(-1.2815515655446004) = 0.1, from a table.
    taken = torch.nonzero(normal < -1.2815515655446004).flatten().tolist()
    assert cohorts(0.1, count=1)[0] == taken
    least = sorted(sorted(range(200), key=normal.tolist().__getitem__)[:7])
    assert subset_cohort(7, 1, 200, simulated_noise(3)) == least


def test_a_round_without_clients_has_noise_alone():
    e = small(**POISSON, method="scaffold", clients_per_round=2)
    rounds = Rounds.of(e, trainer(e).data.kind, simulated_noise(7))
    start = rounds.merge.method.server.start
    after, _ = rounds.learned(start, TrainReplies([], [], [], Counter()), 5)
    moved = torch.cat(
        [(after["model"][n] - leaf).flatten() for n, leaf in sorted(start["model"].items())]
    )
    # The sum's deviation is 2 x 0.1, and the divisor is the expected size of a cohort, 2.
    assert moved.std().item() == pytest.approx(0.1, rel=0.1)
    assert moved.abs().max() < 0.1 * 6


@KINDS
def test_a_single_client_that_is_missing_does_not_stop_a_run(kind):
    e = small(**kind, method="fedavg")
    rounds = Rounds.of(e, trainer(e).data.kind, simulated_noise(0))
    silent = TrainReplies([], [], [[3]], Counter())
    start = rounds.merge.method.server.start
    assert rounds.learned(start, silent, 1)[1].usable == 0
    with pytest.raises(RunStopped, match="round 1 has no usable reply"):
        rounds.learned(start, silent._replace(silent=[[3], [4]]), 1)


def test_clients_that_are_there_are_divided_by_the_expected_number():
    e = small(**POISSON | {"noise_multiplier": 1e-6, "clip": 1e3}, method="fedavg")
    rounds = Rounds.of(e, trainer(e).data.kind, simulated_noise(0))
    start = rounds.merge.method.server.start
    moved = {"model": {n: leaf + 1.0 for n, leaf in start["model"].items()}}
    after = rounds.merge(start, [Update(moved, 5.0), Update(moved, 1.0)], 1)
    for name, leaf in flat(after).items():
        expected = flat(start)[name] + 2 / e.clients_per_round
        torch.testing.assert_close(leaf, expected, atol=1e-2, rtol=0)


def test_runs_go_on_through_rounds_without_clients(tmp_path):
    e = small(**POISSON, method="fedavg", clients_per_round=1, num_rounds=8)
    found = simulate(e, tmp_path / "run")
    rows = Run.open(tmp_path / "run").rows()[1:]
    sizes = [len(row["cohort"]) for row in rows]
    assert 0 in sizes
    assert max(sizes) > 0
    assert [row["clients"] for row in rows] == sizes
    assert found["sampling-rate"] == 1 / 20
    assert found["adjacency"] == "one client is added or removed"


def test_cohorts_without_replacement_are_as_large_in_each_round_of_a_run(tmp_path):
    e = small(**SUBSET, method="fedavg", clients_per_round=3, num_rounds=6, unseen_clients=4)
    found = simulate(e, tmp_path / "run")
    rows = Run.open(tmp_path / "run").rows()[1:]
    assert [len(row["cohort"]) for row in rows] == [row["clients"] for row in rows] == [3] * 6
    assert found["sampling-rate"] == 3 / 16
    assert found["adjacency"] == "one client's data are replaced by any others"
    assert found["epsilon"] == subset_epsilon(2.0 / 2, 3 / 16, 6, 1e-5)
    for former in ({}, {"share": "head.*"}):  # of an older run, whose costs are as they were
        path = tmp_path / "run" / "config.json"
        config = checked(json.loads(path.read_text()))
        settings = config["settings"] | former
        path.write_text(json.dumps(summed(config | {"settings": settings})))
        assert {*spent_by_client(Run(tmp_path / "run")).values()} == {found["epsilon"]}


def test_cohorts_without_replacement_are_as_secret_as_those_of_poisson():
    by = "sampling = without-replacement"
    for settings, says in [  # for the others see tests/guards/unfit.txt
        ({"privacy": "local"}, f"{by} needs that the server adds noise to the sum: privacy is not"),
        ({"privacy": "none"}, f"{by} needs that the server adds noise to the sum: privacy is not"),
        ({"shards": 2}, f"shards = 2 needs that cohorts are no secret: {by} ends"),
    ]:
        with entry(settings), pytest.raises(ValueError, match=says):
            small(**SUBSET | settings)


def test_secret_cohorts_are_recorded_before_they_are_asked_and_count_again(tmp_path):
    e = small(**POISSON, method="fedavg", clients_per_round=1, num_rounds=5)
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        coordinator.run(grid(trainer(e), 3), e, folder, engine="flower")
    asked = [(folder / "clients-asked.txt").read_text().splitlines() for folder in folders]
    assert [len(lines) for lines in asked] == [5, 5]
    rows = Run.open(folders[0]).rows()[1:]
    assert [" ".join(map(str, row["cohort"])) for row in rows] == asked[0]
    assert rows[-1]["epsilon"] == poisson_epsilon(2.0, 1 / 20, 5, 1e-5)
