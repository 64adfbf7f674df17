"""Rows that clients are scored on, against numpy's padding of each."""

from types import SimpleNamespace

import numpy as np
import torch

from engram.scoring.query_rows import padded


def test_rows_are_padded_by_each_clients_last_and_the_padding_is_not_counted():
    rng = np.random.default_rng(0)
    rows = {client: rng.integers(0, 1000, 1 + client % 7) for client in range(40)}
    asked = [3, 39, 0, 20, 21]
    found = padded(SimpleNamespace(y=torch.zeros(1)), rows, asked)
    for client, mine, counted in zip(asked, found.rows, found.counted, strict=True):
        held = rows[client]
        expected = np.pad(held, (0, len(mine) - len(held)), mode="edge")
        np.testing.assert_array_equal(mine, expected)
        assert counted.tolist() == [True] * len(held) + [False] * (len(mine) - len(held))
