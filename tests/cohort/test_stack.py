"""Runs that are trained as one stack of clients, against each run by itself."""

from collections import deque
from itertools import product

import numpy as np
import pytest
from torch import nn

from engram.cohort.trainer.trainer import ClientFailed
from engram.core.method import Phase
from engram.core.settings import Eta
from engram.methods.fedavg import FedAvg
from engram.networks.registry import model
from engram.settings.errors import RunStopped
from engram.settings.families import METHODS
from engram.settings.network import method
from engram.simulations.engine import simulate
from engram.strategies.running.rounds import rounds
from engram.tune.runs import Stacked, members_of
from tests.networks.networks import Normed
from tests.samples import EIGHT, sampled
from tests.support import small_of_any, trained_together

ROUNDS = 2


@model
class StackedNet(Normed):
    """Batch norm and dropout, for digits."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 10)


NETWORKS = {
    "mlp": {},
    "wide": {"local_steps": 20},  # more rows than inputs are wide: weights as they are
    "module": {"model": "StackedNet"},
    "features": {"model": "cnn", "hidden": "8", "local_steps": 2, "batch_size": 2},
}
# All train a module, by vmap, and two a network with each way of its own.
CASES = [(name, "module") for name in EIGHT]
CASES += product(("local-moml", "fedavg"), ("mlp", "wide", "features"))
QUICK = [case for case in CASES if case[0] != "fedavg"]


def alone(experiment, folder):
    """Returns each client's scores after a run by itself; None if it stopped."""
    try:
        found = simulate(experiment, folder)["clients"]
    except RunStopped:
        return None
    found.pop("ids")
    return {
        key: np.array([np.nan if v is None else v for v in each]) for key, each in found.items()
    }


def check(experiments, tmp_path, *, stacks=1, block=None):
    members = members_of(experiments)
    for member in members:
        member.trainer.block = block or member.trainer.block
    stacked = Stacked(members)
    assert len(stacked.stacks) == stacks
    deque(rounds(experiments[0], stacked.train), maxlen=0)
    for i, (experiment, member) in enumerate(zip(experiments, members, strict=True)):
        expected = alone(experiment, tmp_path / str(i))
        assert (expected is None) == bool(member.stopped)
        if expected is None:
            continue
        scores = member.scores(ROUNDS)
        assert set(scores.columns) < set(expected)
        for name, column in scores.columns.items():
            np.testing.assert_allclose(column.numpy(), expected[name], atol=1e-5, err_msg=name)


def settings_in_twos(name):
    """Returns two values of each number of a method's own, within its range, but for shares."""
    method = METHODS[name]
    own = {
        key: field
        for key, field in method.model_fields.items()
        if field.annotation is float and "share" not in key
    }
    return [{key: field.default * factor for key, field in own.items()} for factor in (0.5, 0.9)]


@pytest.mark.parametrize(("name", "network"), sampled(CASES, QUICK))
def test_a_run_in_a_stack_is_the_run_by_itself(name, network, tmp_path):
    shared = {"method": name, "num_rounds": ROUNDS, "num_clients": 8, "adapt_steps": 2}
    shared |= NETWORKS[network]
    experiments = [  # what a function makes may hold constants that depend on the seed
        small_of_any(
            **shared | own | {"seed": i * (network != "module"), "adapt_lr": 0.01 + 0.01 * i}
        )
        for i, own in enumerate(settings_in_twos(name))
    ]
    check(experiments, tmp_path)


VARIANTS = {
    "carried memories": ("local-moml", {"memory": "carry"}),
    "moments that are kept": ("fedavg", {"optimizer": "adam", "optimizer_state": "kept"}),
    "moments, affine": ("pfedme", {"optimizer": "momentum"}),
    "decay and clipping": ("per-fedavg", {"weight_decay": 0.01, "gradient_clip": 0.5}),
    "a schedule": ("fedavg", {"schedule": "cosine"}),
    "epochs": ("fedavg", {"local_epochs": 1}),
    "rows in order": ("fedavg", {"order": "stream"}),
    "personal layers": ("fedavg", {"personal": "dense1.*"}),
    "a personal first layer": ("fedavg", {"personal": "dense0.*"}),
    "local privacy": ("fedavg", {"privacy": "local", "clip": 0.5, "noise_multiplier": 0.1}),
    "a robust merge": ("fedavg", {"merge": "median"}),
    "a step of the server": ("fedavg", {"server_step": "universal"}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_whatever_a_run_does_is_done_in_a_stack(variant, tmp_path):
    name, settings = VARIANTS[variant]
    experiments = [
        small_of_any(method=name, num_rounds=ROUNDS, eta=eta, seed=seed, **settings)
        for eta, seed in product((0.05, 0.1), (0, 1))
    ]
    # A permutation of a client's rows is as long as they are many, which a seed decides.
    check(experiments, tmp_path)


def test_runs_that_draw_differently_are_stacked_apart(tmp_path):
    experiments = [
        small_of_any(method="fedavg", num_rounds=ROUNDS, batch_size=size, eta=eta)
        for size, eta in product((2, 4), (0.05, 0.1))
    ]
    check(experiments, tmp_path, stacks=2)


def test_runs_whose_phases_begin_at_other_steps_are_stacked_apart(tmp_path):
    experiments = [
        small_of_any(method="fedrep", num_rounds=ROUNDS, local_steps=10, personal_share=share)
        for share in (0.1, 0.72, 0.75, 0.9)  # 1, 8, 8, and 9 steps
    ]
    check(experiments, tmp_path, stacks=3)


def test_a_method_without_memory_is_not_stacked_with_one_that_remembers(tmp_path):
    experiments = [small_of_any(num_rounds=ROUNDS, beta=beta) for beta in (0.5, 0.9, 1.0)]
    check(experiments, tmp_path, stacks=2)


def test_a_run_that_diverges_stops_and_the_others_go_on(tmp_path):
    experiments = [
        small_of_any(method="fedavg", num_rounds=ROUNDS, eta=eta) for eta in (0.1, 1e30, 0.05)
    ]
    check(experiments, tmp_path)
    members = trained_together(experiments)
    assert [bool(member.stopped) for member in members] == [False, True, False]


def test_a_method_that_looks_at_a_settings_value_is_run_by_itself(plug_ins, tmp_path):
    @method("looks", source="this test")
    class Looks:
        """FedAvg whose larger step sizes are halved."""

        eta: Eta = 0.1

        def build(self, context):
            eta = float(self.eta)
            return FedAvg(eta=0.5 * eta if eta > 0.07 else eta).build(context)

    experiments = [
        small_of_any(method="looks", num_rounds=ROUNDS, eta=eta, seed=seed)
        for eta, seed in product((0.05, 0.1), (0, 1))
    ]
    check(experiments, tmp_path)


def test_the_client_whose_step_raises_is_named(plug_ins):
    @method("raises", source="this test")
    class Raises:
        """A method without a step."""

        eta: Eta = 0.1

        def build(self, context):
            def direction(work, batches):
                raise ArithmeticError(f"at {float(self.eta):.2f}")

            plain = FedAvg(eta=self.eta).build(context)
            client = plain.client._replace(phases=(Phase(direction, self.eta),))
            return plain._replace(client=client)

    experiments = [small_of_any(method="raises", model="StackedNet", eta=eta) for eta in (0.1, 0.2)]
    with pytest.raises(ClientFailed, match=r"client \d+ failed in round 1 at step 1: .*at 0.10"):
        trained_together(experiments)


@pytest.mark.parametrize("block", [5, 9])  # of runs of four clients: one, or two of them at once
def test_no_more_runs_train_at_once_than_fit(block, tmp_path):
    experiments = [
        small_of_any(method="fedavg", num_rounds=ROUNDS, eta=eta) for eta in (0.05, 0.1, 0.2)
    ]
    check(experiments, tmp_path, block=block)
