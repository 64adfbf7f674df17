"""Classification as a bandit (Section 7): an image becomes K arms, one of which pays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.bandits.environments.environment import Environment, Round, checked_length
from engram.bandits.policy import ROUND, SETTING, generator
from engram.core.arrays import Array, Ints
from engram.core.checks import must, require
from engram.core.machine import check_rows
from engram.core.streams import Stream
from engram.core.streams import generator as stream_generator
from engram.data.lazy import like_of, whole
from engram.data.loading import load
from engram.data.source import PERMUTED, Source
from engram.settings.errors import DataError


class LabeledRows(NamedTuple):
    """A data set for classification."""

    x: npt.NDArray[Any]  # inputs, shape (n, d), of any numeric type; neither copied nor changed
    y: npt.NDArray[Any]  # their classes, 0, ..., K - 1, shape (n,)


def read_classes(source: Source, *, data_dir: Path) -> LabeledRows:
    """Reads all rows of a data set.

    Args:
        source: The data set; of ``permuted-NAME``, the pixels of all images of NAME are in an order
            of its own, the same for all and in all runs.
        data_dir: As in ``load``.

    Raises:
        DataError: As ``load`` says; or rows are more than one array.
    """
    parts = load(source.unpermuted, data_dir=data_dir, test_fraction=0.0, seed=0)
    x = np.concatenate([_whole(source, part) for part in (parts.x_train, parts.x_test)])
    x = x.reshape(len(x), -1)
    if source.kind == PERMUTED:
        x = x[:, stream_generator(0, Stream.PARTITION).permutation(x.shape[1])]
    y = np.concatenate([parts.y_train, parts.y_test])
    if y.ndim != 1:
        raise DataError(must("dataset", source, "of one class a row, for a bandit of classes"))
    return LabeledRows(x, y)


def _whole(source: Source, x: Any) -> npt.NDArray[Any]:
    row = like_of(x)
    if not isinstance(row, np.ndarray):
        raise DataError(must("dataset", source, "of one array of inputs, for a bandit of classes"))
    if row is x or not len(x):
        return row[: len(x)]
    check_rows(f"{source}, read as a whole,", len(x) * row.nbytes)
    return np.asarray(whole(x))


def laid_out(x: Array, arms: int) -> Array:
    """Returns an input (d,) as K arms, (K, d + K - 1), each shifted by one place.

    They are (x, 0, ..., 0), (0, x, 0, ...), ..., (0, ..., 0, x).
    """
    found = np.zeros((arms, len(x) + arms - 1))
    for arm, row in enumerate(found):
        row[arm:][: len(x)] = x
    return found


def classes(
    datasets: Sequence[LabeledRows], *, horizon: int, seed: int, groups: int | None = None
) -> Environment:
    """Builds an environment that classifies images of several data sets.

    In the paper, each class of each data set is a user: a round draws a data set, one of its
    classes, and one of the images of this class, all uniformly, and the arm of the class pays. So
    the same arm always pays for a user, and a policy that learns each user's arm needs no image.

    With ``groups``, each data set has as many users as classes, in groups whose sizes differ by at
    most one. A round draws a data set, one of its users, and any of its classes. The users of a
    group share a random permutation of the classes, and the arm to which it maps the image's class
    pays; so this depends on the image and on the group. Users' expected rewards for the other data
    sets' images, which they are never shown, follow from the same permutation.

    Args:
        datasets: At least one, all with the same d and K, and rows of each class. Rows are scaled
            to Euclidean norm 1; a row of zeros stays as it is.
        horizon: T, at least 1.
        seed: Seed of all draws.
        groups: Number of groups of each data set's users, in 1, ..., K; None for the paper's users.
    """
    dim, arms = _checked(datasets)
    checked_length(horizon, arms)
    require(groups is None or 1 <= groups <= arms, "groups", groups, f"None, or in [1, {arms}]")
    rows = [[np.flatnonzero(y == k) for k in range(arms)] for _, y in datasets]
    users = len(datasets) * arms
    right = _right_arms(users, arms, seed, groups)

    def draw(t: int) -> tuple[int, int, Array]:  # user, label, image
        rng = generator(seed, t, ROUND)
        data, label, member = (int(rng.integers(n)) for n in (len(datasets), arms, arms))
        number = rng.choice(rows[data][label])
        user = data * arms + (label if groups is None else member)
        return user, label, np.asarray(datasets[data].x[number], dtype=np.float64)

    def round_(t: int) -> Round:
        user, label, x = draw(t)
        pays = (np.arange(arms) == right[user, label]).astype(np.float64)
        return Round(user, laid_out(x / (np.linalg.norm(x) or 1.0), arms), pays, pays)

    def expected_rewards(t: int) -> Array:
        return np.asarray((np.arange(arms)[:, None] == right[:, draw(t)[1]]).astype(np.float64))

    everyones = None if groups is None else expected_rewards
    return Environment(horizon, users, arms, dim + arms - 1, round_, everyones)


def _right_arms(users: int, arms: int, seed: int, groups: int | None) -> Ints:
    """Returns the arm that pays each user for each class, shape (users, K)."""
    if groups is None:
        return np.tile(np.arange(arms), (users, 1))
    rng, user = generator(seed, 0, SETTING), np.arange(users)
    permutations = np.stack([rng.permutation(arms) for _ in range(users // arms * groups)])
    group = user // arms * groups + user % arms % groups
    return np.asarray(permutations[group])


def _checked(datasets: Sequence[LabeledRows]) -> tuple[int, int]:
    require(len(datasets) >= 1, "datasets", len(datasets), "at least one")
    for x, y in datasets:
        require(x.ndim == 2 and len(x) == len(y), "a data set's shape", x.shape, f"({len(y)}, d)")
        finite = x.dtype.kind in "bui" or bool(np.isfinite(x).all())
        require(finite, "a data set's inputs", "NaN or infinity", "finite")
        found = np.unique(y).tolist()
        numbered = len(found) >= 2 and found == list(range(len(found)))
        expected = "0, 1, ..., each of some row, two at least"
        require(numbered, "a data set's classes", found, expected)
    shapes = [(x.shape[1], int(y.max()) + 1) for x, y in datasets]
    alike = len(set(shapes)) == 1
    require(alike, "features and classes of the data sets", shapes, "the same for all")
    return shapes[0]
