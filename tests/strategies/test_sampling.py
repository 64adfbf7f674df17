"""Poisson sampling: chances, secrecy, rounds without clients, and what is claimed for it."""

from collections import Counter

import numpy as np
import pytest
import torch

from engram.core.method import Update
from engram.core.slots import flat
from federation.amplification import poisson_epsilon
from federation.errors import RunStopped
from federation.noise import secret_noise, simulated_noise
from federation.streams import Stream
from server import run as coordinator
from server.record import RunRecord
from simulations.engine import simulate
from strategies.rounds import Rounds
from strategies.sampling import poisson_cohort
from strategies.screening import TrainReplies
from tests.support import grid, small, trainer

POISSON = {"privacy": "central", "clip": 0.1, "noise_multiplier": 2.0, "sampling": "poisson"}


def cohorts(rate, count=400, clients=200, absent=()):
    noise = simulated_noise(3)
    return [poisson_cohort(rate, r, clients, noise, absent) for r in range(1, count + 1)]


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


def test_nobody_takes_the_place_of_who_is_absent():
    for whole, less in zip(cohorts(0.1), cohorts(0.1, absent={5, 7}), strict=True):
        assert less == [client for client in whole if client not in {5, 7}]


def test_everybody_is_drawn_at_rate_one():
    assert poisson_cohort(1.0, 1, 9, simulated_noise(0)) == [*range(9)]


def test_a_secret_cohort_is_another_one_each_time():
    first, second = (poisson_cohort(0.5, 1, 200, secret_noise) for _ in range(2))
    assert first != second


def test_simulations_repeat_cohorts_and_the_normal_numbers_are_those_of_the_stream():
    normal = simulated_noise(3)(200, Stream.COHORT, 1)
    # Phi(-1.2815515655446004) = 0.1, from a table.
    assert (
        cohorts(0.1, count=1)[0] == torch.nonzero(normal < -1.2815515655446004).flatten().tolist()
    )


def test_a_round_without_clients_has_noise_alone():
    e = small(**POISSON, method="scaffold", clients_per_round=2)
    rounds = Rounds.of(e, trainer(e).data.kind, simulated_noise(7))
    start = rounds.merge.method.server.start
    after = rounds.merged(start, [], 5)
    moved = torch.cat(
        [(after["model"][n] - leaf).flatten() for n, leaf in sorted(start["model"].items())]
    )
    # The sum's deviation is 2 x 0.1, and the divisor is the expected size of a cohort, 2.
    assert moved.std().item() == pytest.approx(0.1, rel=0.1)
    assert moved.abs().max() < 0.1 * 6


def test_a_single_client_that_is_missing_does_not_stop_a_run():
    e = small(**POISSON, method="fedavg")
    rounds = Rounds.of(e, trainer(e).data.kind, simulated_noise(0))
    silent = TrainReplies([], [], [[3]], Counter())
    assert rounds.updates(silent, 1) == []
    with pytest.raises(RunStopped, match="round 1 has no usable reply"):
        rounds.updates(silent._replace(silent=[[3], [4]]), 1)


def test_clients_that_are_there_are_divided_by_the_expected_number():
    e = small(**POISSON | {"noise_multiplier": 1e-6, "clip": 1e3}, method="fedavg")
    rounds = Rounds.of(e, trainer(e).data.kind, simulated_noise(0))
    start = rounds.merge.method.server.start
    moved = {"model": {n: leaf + 1.0 for n, leaf in start["model"].items()}}
    after = rounds.merged(start, [Update(moved, 5.0), Update(moved, 1.0)], 1)
    for name, leaf in flat(after).items():
        expected = flat(start)[name] + 2 / e.clients_per_round
        torch.testing.assert_close(leaf, expected, atol=1e-2, rtol=0)


def test_runs_go_on_through_rounds_without_clients(tmp_path):
    e = small(**POISSON, method="fedavg", clients_per_round=1, num_rounds=8)
    found = simulate(e, tmp_path / "run")
    rows = RunRecord.open(tmp_path / "run").rows()[1:]
    sizes = [len(row["cohort"]) for row in rows]
    assert 0 in sizes
    assert max(sizes) > 0
    assert [row["clients"] for row in rows] == sizes
    assert found["sampling-rate"] == 1 / 20
    assert found["adjacency"] == "one client is added or removed"


def test_messages_give_what_a_simulation_gives(tmp_path):
    e = small(**POISSON, method="fedavg", clients_per_round=1, num_rounds=6)
    simulate(e, tmp_path / "direct")
    noise = simulated_noise(e.seed)
    g = grid(trainer(e, noise=noise), 3)
    coordinator.run(g, e, tmp_path / "sent", engine="vectorized", noise=noise)
    one, two = (RunRecord.open(tmp_path / name) for name in ("direct", "sent"))
    assert [r.get("cohort") for r in one.rows()] == [r.get("cohort") for r in two.rows()]
    models = [flat({"m": r.load_checkpoint().model}) for r in (one, two)]
    for name, leaf in models[0].items():
        torch.testing.assert_close(models[1][name], leaf, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"privacy": "local"}, "sampling must be fixed unless privacy is central"),
        ({"privacy": "none"}, "sampling must be fixed unless privacy is central"),
        ({"shards": 2}, "shards must be 1 where sampling is poisson"),
        ({"min_clients": 3}, "min-clients must be at most 1 where sampling is poisson"),
        ({"participation": "runs/a"}, "participation must be empty where sampling is poisson"),
    ],
)
def test_what_poisson_sampling_does_not_go_with_is_one_line(settings, says):
    with pytest.raises(ValueError, match=says):
        small(**POISSON | settings)


def test_secret_cohorts_are_recorded_before_they_are_asked_and_count_again(tmp_path):
    e = small(**POISSON, method="fedavg", clients_per_round=1, num_rounds=5)
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        coordinator.run(grid(trainer(e), 3), e, folder, engine="flower")
    asked = [(folder / "clients-asked.txt").read_text().splitlines() for folder in folders]
    assert [len(lines) for lines in asked] == [5, 5]
    rows = RunRecord.open(folders[0]).rows()[1:]
    assert [" ".join(map(str, row["cohort"])) for row in rows] == asked[0]
    assert rows[-1]["epsilon"] == poisson_epsilon(2.0, 1 / 20, 5, 1e-5)
