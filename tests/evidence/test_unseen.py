"""Clients that come later: what they learn from, and what is told of them, on small drawings."""

import numpy as np
import pytest

from engram.data.load_federation import federated_data
from engram.settings.errors import DataError
from tests.evidence import unseen
from tests.support import write_npz


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Twelve alphabets of 15 characters, each a pattern of its own with noise."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12 * 15), 20)
    x = rng.integers(0, 200, (12 * 15, 4, 4))[y] + rng.integers(0, 50, (len(y), 4, 4))
    arrays = {"x": x.astype(np.uint8), "y": y, "alphabet": y // 15}
    name = write_npz(tmp_path_factory.mktemp("omniglot") / "a.npz", **arrays)
    return unseen.drawings(name.removeprefix("npz:"))


def test_each_alphabet_has_as_many_characters_and_drawings(images):
    assert images.shape == (12, 14, 20, 4, 4)


TINY = unseen.Network(
    {"model": "mlp", "hidden": "20", "clients-per-round": 2},
    {"fedavg": [{"eta": 0.1}], "fedrep": [{"eta": 0.1}]},
    [(0, 0.1), (60, 0.3)],
)


def test_newcomers_have_so_many_drawings_of_each_character(images):
    late = unseen.unseen_of(0, 12)
    assert len(late) == 10
    data = federated_data(unseen.settings(unseen.federation(images, 5, late), TINY, 0, 1, 12))
    for client in range(12):
        assert len(data.train.rows[client]) == 14 * (5 if client in late else 12)
        assert len(data.test.rows[client]) == 14 * 8
        classes = np.bincount(data.train.y[data.train.rows[client]])
        assert len(set(classes.tolist())) == 1


def test_methods_are_compared_on_splits_that_nothing_was_chosen_by(images):
    choices = unseen.chosen(images, TINY, [1000], rounds=1)
    assert {c["tuned"] for by_shots in choices.values() for c in by_shots.values()} == {(60, 0.3)}
    found = unseen.rows(unseen.compare(images, TINY, choices, [0], rounds=1), choices)
    assert [(row["shots"], row["method"]) for row in found] == [
        (shots, method) for shots in unseen.SHOTS for method in ("fedavg", "fedrep", unseen.ALONE)
    ]
    for row in found:
        assert 1 / 14 < row["accuracy"] <= 1
        if row["method"] == unseen.ALONE:
            assert {row["gain"][key] for key in ("mean", "low", "high")} == {0}
    assert unseen.table(found).row_count == 9


def test_another_file_is_refused(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=np.zeros((2, 4, 4), np.uint8), y=np.arange(2))
    with pytest.raises(DataError, match="must hold x, y and alphabet, and lacks 'alphabet'"):
        unseen.drawings(path.removeprefix("npz:"))
