"""Clients whose batches differ are arranged so that each has its own rows, and most rows count."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from engram.cohort.draws import Draws, arranged, groups
from tests.samples import entry

SIZES = np.array([[3, 3, 1, 0], [3, 2, 0, 0], [3, 3, 3, 2], [3, 3, 2, 0], [1, 0, 0, 0]])


def draws(sizes, *, batches=1, initial=0, phases=1, seeds=False):
    """Rows are numbered through; those that are padding are -1."""
    clients, steps, size = len(sizes), sizes.shape[1], sizes.max()
    drawn = initial + steps * batches * size
    rows = torch.arange(clients * drawn).view(clients, drawn)
    padding = np.arange(size) >= sizes[:, :, None, None].repeat(batches, 2)
    rows[:, initial:][torch.from_numpy(padding.reshape(clients, -1))] = -1
    starts = np.stack([np.arange(phases) * (n > 0).sum() // phases for n in sizes])
    own = 10 * rows if seeds else None
    return Draws(None, rows, initial, batches, int(size), seeds=own, sizes=sizes, starts=starts)


@pytest.mark.parametrize("seeds", [False, True])
def test_each_step_has_a_clients_own_rows(seeds):
    for initial in [0, 2]:
        for batches in [1, 3]:
            with entry(initial, batches):
                given = draws(SIZES, batches=batches, initial=initial, seeds=seeds)
                steps = arranged(given)
                assert (steps.draws.rows >= 0).all()
                if seeds:
                    assert torch.equal(steps.draws.seeds, 10 * steps.draws.rows)
                for least in (1, 4, 10**6):
                    chunks = list(steps.chunks(least))
                    edges = [chunks[0].start, *(chunk.stop for chunk in chunks)]
                    assert (edges[0], edges[-1]) == (0, steps.draws.rows.shape[1])
                    assert all(stop - start >= least for start, stop in pairwise(edges[:-1]))
                    every = [batch for chunk in chunks for batch in chunk.batches]
                    assert sum(size for size, _ in every) == edges[-1]
                    parts = iter(every)
                    at = 0
                    if initial:
                        assert next(parts) == (initial, None)
                        assert torch.equal(steps.draws.rows[:, :initial], given.rows[:, :initial])
                        at = initial
                    for h in range(4):
                        for b in range(batches):
                            size, shares = next(parts)
                            for i, n in enumerate(SIZES):
                                last = (n > 0).sum() - 1
                                step = min(h, last)
                                first = initial + (step * batches + b) * 3
                                mine = n[step]
                                found = steps.draws.rows[i, at : at + size]
                                assert torch.equal(
                                    found[:mine], given.rows[i, first : first + mine]
                                )
                                assert (found[mine:] == found[mine - 1]).all()
                                expected = [1 / mine] * mine + [0] * (size - mine)
                                weights = (
                                    torch.full((5, size), 1 / size) if shares is None else shares
                                )
                                assert weights[i].tolist() == pytest.approx(expected)
                            at += size


def test_a_client_that_is_done_does_not_move():
    steps = arranged(draws(SIZES))
    before, after = {"w": torch.zeros(5, 2)}, {"w": torch.ones(5, 2)}
    for h in range(4):
        moved = steps.moved(h, (after, {}), (before, {}))[0]["w"]
        assert moved[:, 1].tolist() == (SIZES[:, h] > 0).astype(float).tolist()


def test_clients_alike_have_no_padding():
    sizes = np.array([[3, 3, 2]] * 4)
    steps = arranged(draws(sizes))
    assert (steps.widths, steps.counts, steps.ends) == ([3, 3, 2], None, None)
    assert torch.equal(steps.draws.rows, draws(sizes).rows[:, :-1])
    assert all(shares is None for chunk in steps.chunks(1) for _, shares in chunk.batches)


def test_groups_are_of_clients_of_like_lengths():
    sizes = np.zeros((40, 60), dtype=int)
    lengths = np.random.default_rng(0).integers(1, 60, 40)
    for row, steps in zip(sizes, lengths, strict=True):
        row[:steps] = 8
    sizes[lengths == lengths.max(), 5] = 3
    found = groups(draws(sizes), padded=True)
    assert sorted(i for some in found for i in some) == list(range(40))
    assert 3 < len(found) < 20
    for some in found:
        assert some == sorted(some)
        assert lengths[some].min() >= 0.75 * lengths[some].max()
    alike = groups(draws(sizes), padded=False)
    assert all(len({sizes[i].tobytes() for i in some}) == 1 for some in alike)
    assert len(alike) == len({row.tobytes() for row in sizes})


def test_clients_whose_second_phase_begins_elsewhere_are_apart():
    sizes = np.array([[4] * 8, [4] * 8, [4] * 7 + [0]])
    assert len(groups(draws(sizes), padded=True)) == 1
    assert groups(draws(sizes, phases=2), padded=True) == [[0, 1], [2]]
