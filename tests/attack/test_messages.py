"""Rows that a server finds again in messages of the first round."""

import numpy as np
import pytest

import engram
from engram.attack.audit.messages import messages

ONE = {"batch_size": 1, "local_steps": 1, "num_rounds": 1, "hidden": "16"}
ONE |= {"validation_fraction": 0.0}


def clients(rows=8):
    rng = np.random.default_rng(0)
    return {
        name: (rng.normal(size=(rows, 6)).astype(np.float32), np.arange(rows) % 2)
        for name in "abcd"
    }


def seen(tmp_path, attacked=(0,), **settings):
    run = engram.simulate(
        clients(), out=tmp_path / "run", progress=False, clients_per_round=4, **settings
    )
    return messages(run.learned, attacked)


def test_a_message_of_one_row_is_this_row(tmp_path):
    first, third, members = seen(tmp_path, (0, 2), method="fedavg", **ONE)
    assert [first.client, third.client] == ["a", "c"]
    for each in (first, third):
        assert (each.by, each.rows, each.layer, each.chance) == ("server", 1, 1.0, 0.0)
        assert each.gradient == 1.0
    # Of four clients, the mean still has rows that alone move a unit.
    assert (members.by, members.client, members.rows) == ("members", "4 clients together", 4)


@pytest.mark.parametrize("privacy", ["local", "central"])
def test_noise_hides_rows_from_whom_it_is_for(tmp_path, privacy):
    noisy = {"privacy": privacy, "noise_multiplier": 5.0, "clip": 0.1, "delta": 1e-3}
    first, members = seen(tmp_path, method="fedavg", **ONE, **noisy)
    assert members.told == 0
    assert first.told == (0 if privacy == "local" else 1)  # clipped rows keep their direction


def test_heads_that_stay_at_home_leave_the_first_layer(tmp_path):
    first, *_ = seen(tmp_path, method="fedper", **ONE)
    assert (first.layer, first.gradient) == (1.0, None)


def test_methods_with_further_slots_are_attacked_too(tmp_path):
    first, *_ = seen(tmp_path, method="scaffold", **ONE)
    assert first.layer == 1.0
