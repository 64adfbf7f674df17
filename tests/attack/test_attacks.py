"""Attackers in a simulation: who they are, what they do, and what a bound or a center keeps out."""

import numpy as np
import pytest
import torch

from engram.attack.attacks import TARGET, attackers_of, backdoor_success, poisoned, triggered
from engram.data.load_federation import federated_data
from engram.runs.run import Run
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate

SMALL = {"num_clients": 10, "clients_per_round": 10, "num_rounds": 2, "eval_every": 2}


def experiment(**settings):
    return Experiment(**({"method": "fedavg"} | SMALL | settings))


def slots(e, folder, engine="vectorized"):
    simulate(e, folder, engine=engine)
    return Run.open(folder).load_checkpoint().model


def same(one, other, **tolerance):
    assert one.keys() == other.keys()
    torch.testing.assert_close(one, other, **tolerance)


def test_attackers_are_a_share_of_the_clients_that_the_seed_draws():
    e = experiment(attack="ipm", num_clients=20, attackers=0.2)
    assert len(attackers_of(e)) == 4
    assert attackers_of(e) == attackers_of(e.model_copy(update={"attack": "alie"}))
    assert attackers_of(e) != attackers_of(e.model_copy(update={"seed": 1}))
    assert attackers_of(experiment()) == frozenset()


def test_without_attackers_the_model_is_that_of_an_honest_run(tmp_path):
    honest = slots(experiment(), tmp_path / "honest")
    for attack in ("sign-flip", "backdoor"):
        found = slots(experiment(attack=attack, attackers=0.0), tmp_path / attack)
        same(found, honest, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("attack", ["sign-flip", "alie", "ipm", "label-flip", "backdoor"])
def test_engines_give_the_same_model(tmp_path, attack):
    e = experiment(attack=f"{attack}:2", attackers=0.3)
    found = slots(e, tmp_path / "vectorized")
    same(found, slots(e, tmp_path / "one", "sequential"), atol=1e-5, rtol=1e-4)
    different = slots(experiment(), tmp_path / "honest")
    assert any((found[path] - leaf).abs().max() > 1e-4 for path, leaf in different.items())


def test_a_flipped_sign_moves_the_mean_by_its_share(tmp_path):
    rounds = {"num_rounds": 1, "weighting": "clients", "max_norm": 1e9}
    truth = slots(experiment(**rounds), tmp_path / "honest")
    less = experiment(**rounds, attack="sign-flip:1e-6", attackers=0.1)
    all_but = slots(less, tmp_path / "less")
    flipped = slots(experiment(**rounds, attack="sign-flip", attackers=0.1), tmp_path / "flipped")
    for path, leaf in truth.items():
        # Without the attacker's change d / 10, the mean is as far from the truth as from the lie.
        torch.testing.assert_close(
            all_but[path] - leaf, flipped[path] - all_but[path], atol=2e-6, rtol=1e-3
        )


def test_a_longer_update_harms_no_more_than_one_at_the_bound(tmp_path):
    lies = [
        slots(experiment(attack=f"sign-flip:{scale}", attackers=0.1), tmp_path / str(scale))
        for scale in (30.0, 60.0)
    ]
    same(*lies, atol=1e-5, rtol=1e-3)


def test_rows_are_spoiled_of_attackers_alone():
    for attack in ("label-flip", "backdoor"):
        e = experiment(attack=attack)
        data = federated_data(e)
        spoiled = poisoned(data, e, attackers_of(e))
        for client, rows in enumerate(data.train.rows):
            own = torch.from_numpy(rows)
            changed = (data.train.y[own] != spoiled.train.y[own]) | (
                (data.train.x[own] != spoiled.train.x[own]).flatten(1).any(1)
            )
            assert bool(changed.any()) == (client in attackers_of(e))
            if attack == "label-flip" and client in attackers_of(e):
                assert torch.equal(spoiled.train.y[own], 9 - data.train.y[own])
        assert spoiled.test is data.test


def test_triggered_rows_are_of_other_classes_and_called_the_target():
    data = federated_data(experiment())
    found = triggered(data)
    for before, after in zip(data.test.rows, found.test.rows, strict=True):
        others = data.test.y[torch.from_numpy(before)].numpy() != TARGET
        np.testing.assert_array_equal(before[others], after)
    assert set(found.test.y.tolist()) == {TARGET}


def test_a_backdoor_s_success_is_measured_beside_the_scores(tmp_path):
    e = experiment(attack="backdoor", attackers=0.5, num_rounds=20, partition="iid", eval_every=20)
    simulate(e, tmp_path / "run")
    found = backdoor_success(e, tmp_path / "run")
    clean = experiment(num_rounds=20, partition="iid", eval_every=20)
    simulate(clean, tmp_path / "clean")
    assert found.keys() == {"backdoor", "backdoor-common"}
    assert found["backdoor"] > 2 * backdoor_success(clean, tmp_path / "clean")["backdoor"]


def test_claimed_rows_count_as_much_as_max_weight_allows(tmp_path):
    rounds = {"num_rounds": 1, "max_norm": 1e9, "partition": "iid"}
    attacked = {"attack": "false-rows", "attackers": 0.1}
    bounded = slots(experiment(**rounds, **attacked, max_weight=1.0), tmp_path / "bounded")
    one_each = experiment(**rounds, attack="sign-flip", attackers=0.1, weighting="clients")
    flipped = slots(one_each, tmp_path / "one")
    same(bounded, flipped, atol=0.02, rtol=0)  # most clients of iid have the median's rows


def test_false_scores_are_merged_as_scores_and_change_no_model(tmp_path):
    e, rounds = experiment(attack="false-scores"), {"num_rounds": 4}
    honest = simulate(experiment(**rounds), tmp_path / "honest")
    lied_to = simulate(experiment(**rounds, attack="false-scores"), tmp_path / "lied")
    truth, told = (found["clients"]["accuracy"] for found in (honest, lied_to))
    for client, (true, said) in enumerate(zip(truth, told, strict=True)):
        assert said == (0.0 if client in attackers_of(e) else true)
    share = len(attackers_of(e)) / 10
    assert abs(lied_to["accuracy"] - honest["accuracy"]) <= share


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"attack": "scaled"}, "attack must be scaled:SCALE, where SCALE is not 1, got 'scaled"),
        ({"attack": "theft"}, "attack must be one of none, sign-flip"),
        ({"attack": "ipm", "attackers": 0.6}, "attackers must be less than or equal to 0.5"),
        ({"attack": "false-statistics"}, "fedavg, which sends no claims"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, settings, words):
    with pytest.raises(Refused, match=words):
        simulate(experiment(**settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nodes_refuse_it_by_name():
    with pytest.raises(Refused, match="attack must be none on nodes and on Ray"):
        experiment(attack="ipm").refuse_attack()
    experiment().refuse_attack()
