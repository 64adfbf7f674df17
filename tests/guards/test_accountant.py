"""What privacy a run has spent, repeated rounds included, and where it is told."""

import json
from collections import Counter

import pytest

from engram.compare.comparison_folder import find_runs
from engram.compare.report_rows import report_rows
from engram.guards.accounting.accountant import PrivacyAccountant
from engram.guards.noise import simulated_noise
from engram.runs.run import Run
from engram.server import run as coordinator
from engram.settings.errors import Refused, RunStopped
from engram.simulations.engine import simulate
from engram.simulations.in_process import Direct
from engram.strategies.running.rounds import draw_cohort
from tests.epsilons import epsilon, poisson_epsilon, subset_epsilon
from tests.support import assert_same, grid, small, trainer

CENTRAL = {"privacy": "central", "clip": 0.1, "noise_multiplier": 3.0}


def cohort(server_round):
    return draw_cohort(0, server_round, 20, 4)


def most(rounds):
    asked = Counter(client for r in rounds for client in cohort(r))
    return max(asked.values())


def test_the_client_asked_most_often_counts(tmp_path):
    accountant = PrivacyAccountant(small(**CENTRAL), 0, None)
    assert accountant.spent == {"epsilon": 0.0, "delta": 1e-5}
    for server_round in range(1, 31):
        accountant.note(cohort(server_round))
        expected = epsilon(3.0, most(range(1, server_round + 1)), 1e-5)
        assert accountant.spent["epsilon"] == pytest.approx(expected)
    assert most(range(1, 31)) < 15  # a client is drawn in one round of five
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ("poisson", poisson_epsilon(3.0, 2 / 20, 3, 1e-5)),
        ("without-replacement", subset_epsilon(3.0 / 2, 2 / 20, 3, 1e-5)),
    ],
)
def test_where_cohorts_are_secret_every_round_costs_everybody(tmp_path, sampling, expected):
    sampled = {"sampling": sampling, "clients_per_round": 2}
    accountant = PrivacyAccountant(small(**CENTRAL, **sampled), 0, tmp_path / "begun")
    for clients in ([3], [], [4, 5]):
        accountant.note(clients)
    assert accountant.spent["epsilon"] == expected
    again = PrivacyAccountant(small(**CENTRAL, **sampled), 1, tmp_path / "begun")
    assert again.spent["epsilon"] == expected  # the round without clients counts, too
    without = PrivacyAccountant(small(**CENTRAL, **sampled), 3, None, [])
    assert without.spent["epsilon"] == expected
    assert again.claim["sampling-rate"] == 0.1


def test_a_round_private_by_row_tells_the_rows_that_its_epsilon_follows_from():
    e = small(method="fedavg", privacy="example", clip=0.1)
    accountant = PrivacyAccountant(e, 0, None, examples=lambda: [30, 20, 10])
    accountant.note([0, 2])
    row = accountant.row([0, 2])
    assert row == accountant.spent | {"training-rows": {"0": 30, "2": 10}}
    assert PrivacyAccountant(small(**CENTRAL), 0, None).row([1]) == {"epsilon": 0.0, "delta": 1e-5}


def test_rounds_that_are_repeated_stop_at_the_target(tmp_path):
    e = small(privacy="central", clip=0.1, epsilon=3.0)  # of four rounds
    accountant = PrivacyAccountant(e, 0, tmp_path / "begun")
    for _ in range(4):
        accountant.note([1])
    assert 2.99 < accountant.spent["epsilon"] <= 3
    resumed = PrivacyAccountant(e, 3, tmp_path / "begun")
    with pytest.raises(RunStopped, match=r"another round would take epsilon to 3\.\d+, above the"):
        resumed.note([1])
    resumed.note([2])  # who has not been asked before
    assert len((tmp_path / "begun").read_text().splitlines()) == 5


def test_without_privacy_nothing_is_noted(tmp_path):
    e = small(clip=0.1)
    found = coordinator.run(grid(trainer(e), 2), e, tmp_path / "run", engine="flower")
    assert "epsilon" not in found
    assert not (tmp_path / "run" / "clients-asked.txt").exists()


@pytest.mark.parametrize(("noise", "said"), [(0.05, True), (3.0, False)])
def test_a_run_with_privacy_by_name_only_says_so_as_it_starts(
    tmp_path, warnings_of_engram, noise, said
):
    e = small(**CENTRAL | {"noise_multiplier": noise}, num_rounds=1)
    coordinator.run(grid(trainer(e), 2), e, tmp_path / "run", engine="flower")
    assert said == any("protects hardly anybody" in line for line in warnings_of_engram.messages)


def test_where_noise_is_secret_repeated_rounds_count_again(tmp_path):
    e, file = small(**CENTRAL), tmp_path / "begun"
    first = PrivacyAccountant(e, 0, file)
    for server_round in (1, 2, 3):
        first.note(cohort(server_round))
    resumed = PrivacyAccountant(e, 1, file)  # from the checkpoint of round 1
    assert resumed.spent == first.spent
    resumed.note(cohort(2))
    assert resumed.spent["epsilon"] == pytest.approx(epsilon(3.0, most([1, 2, 2, 3]), 1e-5))
    simulated = PrivacyAccountant(e, 1, None, [{"round": 1, "cohort": cohort(1)}])
    simulated.note(cohort(2))
    assert simulated.spent["epsilon"] == pytest.approx(epsilon(3.0, most([1, 2]), 1e-5))


def test_a_round_whose_metrics_were_lost_counts_for_every_client():
    rows = [{"round": 0}, {"round": 1, "cohort": cohort(1)}]
    found = PrivacyAccountant(small(**CENTRAL), 3, None, rows).spent["epsilon"]
    assert found == pytest.approx(epsilon(3.0, 3, 1e-5))


def test_a_damaged_file_is_one_line(tmp_path):
    for text, reason in (
        (None, "No such file"),
        ("1 2\n", "it has 1 of 2 rounds"),
        ("1\nx\n", "invalid literal"),
    ):
        if text:
            (tmp_path / "begun").write_text(text)
        with pytest.raises(Refused, match=f"begun is damaged: .*{reason}"):
            PrivacyAccountant(small(**CENTRAL), 2, tmp_path / "begun")


def stopped(monkeypatch, e, folder, at):
    """Simulates until a round fails; returns the rounds that have begun."""
    train, calls = Direct.train, []

    def fails(*args, **options):
        calls.append(args[3])
        if args[3] == at:
            raise RunStopped("power failure")
        return train(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Direct, "train", fails)
        with pytest.raises(RunStopped):
            simulate(e, folder)
    return calls


@pytest.mark.parametrize("privacy", ["local", "central"])
def test_a_private_simulation_tells_what_it_spent_and_resumed_gives_the_same_numbers(
    tmp_path, monkeypatch, privacy
):
    e = small(**(CENTRAL | {"privacy": privacy, "memory": "carry"}))
    whole = simulate(e, tmp_path / "whole")
    spent = [row["epsilon"] for row in Run.open(tmp_path / "whole").rows()[1:]]
    assert spent == sorted(spent)
    assert spent[0] > 0
    assert (whole["epsilon"], whole["delta"]) == (spent[-1], 1e-5)
    (row,) = report_rows(find_runs(tmp_path / "whole"))
    assert (row["epsilon"], row["delta"]) == (spent[-1], 1e-5)
    assert not (tmp_path / "whole" / "clients-asked.txt").exists()  # a simulation
    # The last checkpoint is that of round 2.
    assert stopped(monkeypatch, e, tmp_path / "part", 4) == [1, 2, 3, 4]
    resumed = simulate(e.model_copy(update={"resume": str(tmp_path / "part")}), tmp_path / "part")
    one, two = (Run.open(tmp_path / name).load_checkpoint() for name in ("whole", "part"))
    assert_same(one.model, two.model)
    assert whole["epsilon"] == resumed["epsilon"]


@pytest.mark.parametrize("stop", range(1, 7))
def test_wherever_a_run_stops_epsilon_is_that_of_a_run_that_does_not(tmp_path, monkeypatch, stop):
    e = small(**CENTRAL, method="fedavg", num_rounds=6, unseen_clients=14, checkpoint_every=2)
    folder = tmp_path / "run"
    stopped(monkeypatch, e, folder, stop)
    found = simulate(e.model_copy(update={"resume": str(folder)}), folder)
    rows = Run.open(folder).rows()[1:]
    asked: Counter[int] = Counter()
    for row in rows:  # of the six that train, and no others
        asked.update(row["cohort"])
        assert row["epsilon"] == pytest.approx(epsilon(3.0, max(asked.values()), 1e-5))
    assert len(asked) == 6
    assert found["epsilon"] == rows[-1]["epsilon"]


def test_what_is_told_to_use_secret_noise_notes_whom_it_asks_and_differs_each_time(tmp_path):
    e = small(**CENTRAL)
    models = []
    for name in ("one", "two"):
        coordinator.run(grid(trainer(e), 2), e, tmp_path / name, engine="flower")
        models.append(Run.open(tmp_path / name).load_checkpoint().model)
        asked = (tmp_path / name / "clients-asked.txt").read_text().splitlines()
        assert [[int(c) for c in line.split()] for line in asked] == list(map(cohort, range(1, 5)))
    assert (models[0]["model/dense0.weight"] - models[1]["model/dense0.weight"]).abs().max() > 0.01
    same = []
    for name in ("three", "four"):
        noise = simulated_noise(e.seed)
        g = grid(trainer(e), 2)
        coordinator.run(g, e, tmp_path / name, engine="vectorized", noise=noise)
        same.append(Run.open(tmp_path / name).load_checkpoint().model)
    assert_same(*same)
    json.loads((tmp_path / "three" / "results.json").read_text())
