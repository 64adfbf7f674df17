"""Files of bandit data, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from engram.bandits.environments.classes import read_classes
from engram.bandits.environments.ratings import read_ratings
from engram.bandits.federation.bandit_turns import drawn_environment
from engram.data.source import Source
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from tests.samples import entry
from tests.support import write_npz

# --- Classes -----------------------------------------------------------------------------------


def drawn(dataset):
    few = {"num_clients": 2, "num_rounds": 5, "hidden": "4"}
    return drawn_environment(Experiment(method="meta-ban", dataset=dataset, **few))


def test_digits_and_the_same_with_permuted_pixels(tmp_path):
    plain = read_classes(Source("digits"), data_dir=tmp_path)
    mixed = read_classes(Source("permuted-digits"), data_dir=tmp_path)
    assert plain.x.shape == mixed.x.shape == (1797, 64)
    assert np.array_equal(plain.y, mixed.y)
    columns = {column.tobytes(): k for k, column in enumerate(plain.x.T)}
    order = [columns[column.tobytes()] for column in mixed.x.T]
    assert np.array_equal(plain.x[:, order], mixed.x)
    # A pixel that is always 0 cannot be told from another such one.
    assert len(set(order)) == len(columns)


def test_rows_of_a_file_and_its_parts(tmp_path):
    x, y = np.arange(24, dtype=np.uint8).reshape(4, 2, 3), np.array([0, 1, 0, 1])
    name = write_npz(tmp_path / "a.npz", x_train=x[:3], y_train=y[:3], x_test=x[3:], y_test=y[3:])
    found = read_classes(Source(name), data_dir=tmp_path)
    assert found.x.tolist() == x.reshape(4, 6).tolist()
    assert found.y.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [*((kind, "") for kind in ("u1", "u2", "i8", "f4", "f8", "?", "gray")), ("RGB", "permuted-")],
)
def test_images_of_every_type_are_played(tmp_path, kind, prefix):
    """Whether they are in an array or are read as they are drawn: a bandit needs all of them."""
    rng, colors = np.random.default_rng(0), (3,) if kind == "RGB" else ()
    x = rng.integers(0, 2 if kind == "?" else 200, (12, 4, 5, *colors))
    y = np.arange(12) % 2
    if kind in ("gray", "RGB"):
        for number, (pixels, label) in enumerate(zip(x, y, strict=True)):
            folder = tmp_path / "images" / f"c{label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype("u1")).save(folder / f"{number:02}.png")
        x = np.concatenate([x[y == 0], x[y == 1]])  # in the order of the files
        name = f"images:{tmp_path / 'images'}"
        x = x.transpose(0, 3, 1, 2) if colors else x
    else:
        name = write_npz(tmp_path / "a.npz", x=x.astype(kind), y=y)
    assert drawn(prefix + name).round(0).arms.shape[0] == 2
    found = read_classes(Source(prefix + name), data_dir=tmp_path).x.astype(float)
    whole = x.reshape(12, -1)
    assert np.array_equal(*(np.sort(rows) if prefix else rows for rows in (found, whole)))


@pytest.mark.parametrize("prefix", ["", "permuted-"])
def test_rows_that_are_no_images_are_refused(tmp_path, prefix):
    x, y = np.zeros((8, 4, 4)), np.arange(8) % 2
    two = write_npz(tmp_path / "two.npz", **{"x.a": x, "x.b": x, "y": y})
    masks = write_npz(tmp_path / "masks.npz", x=x[:, None], y=np.tile([0, 1], (8, 4, 2)))
    for name, words in ((two, "of one array of inputs"), (masks, "of one class a row")):
        with pytest.raises(DataError, match=f"dataset must be {words}, for a bandit of classes"):
            drawn(prefix + name)


# --- Ratings -----------------------------------------------------------------------------------


COLUMNS = ("user", "item", "rating")


def frame():
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(14), 12)
    item = np.concatenate([rng.permutation(15)[:12] for _ in range(14)])
    stars = rng.integers(1, 11, len(user)) / 2
    return pd.DataFrame({"when": 0, "rating": stars, "user": user, "item": item})


def write(path, data):
    data.to_csv(path, index=False)
    return path


def test_a_table_of_ratings(tmp_path):
    data = frame()
    found = read_ratings(write(tmp_path / "a.csv", data), columns=COLUMNS, groups=3)
    assert (found.users.shape, found.items.shape) == ((14, 10), (15, 10))
    bad = data[data.rating < 2].groupby("user").size()
    assert [len(own) for own in found.bad] == [bad.get(user, 0) for user in range(14)]
    assert sum(map(len, found.bad)) + sum(map(len, found.other)) == len(data)


def test_columns_of_other_names_and_users_that_are_strings(tmp_path):
    data = frame()
    same = data.assign(user=data.user.map(lambda u: f"u{u:02}"))
    same = same.rename(columns={"user": "userId", "item": "movieId", "rating": "stars"})
    one = read_ratings(write(tmp_path / "a.csv", data), columns=COLUMNS, groups=3)
    two = read_ratings(
        write(tmp_path / "b.csv", same), columns=("userId", "movieId", "stars"), groups=3
    )
    for first, second in zip(one, two, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


BAD_RATINGS = {
    "has no column 'rating'; it has when, stars, user, item": lambda data: data.rename(
        columns={"rating": "stars"}
    ),
    "user is missing in row 3": lambda data: data.assign(user=data.user.where(data.index != 3)),
    "column rating must hold numbers, got 'good' in row 2": lambda data: data.assign(
        rating=data.rating.astype(object).where(data.index != 2, "good")
    ),
    "stars must be finite and positive, got \\[-1.0\\]": lambda data: data.assign(rating=-1.0),
    "users, items and stars must be the same, at least 1, got .0, 0, 0.": lambda data: data[:0],
    "rank must be at least 1, and less than users and items": lambda data: data[data.user < 5],
}


def test_ratings_that_cannot_be(tmp_path):
    for message, change in BAD_RATINGS.items():
        with entry(message):
            path = write(tmp_path / "a.csv", change(frame()))
            with pytest.raises(DataError, match=message) as caught:
                read_ratings(path, columns=COLUMNS)
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)


def test_no_file_of_ratings(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_ratings(tmp_path / "none.csv", columns=COLUMNS)
