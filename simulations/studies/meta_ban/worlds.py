"""Environments of the Meta-Ban paper's experiments, and simulated ones with known groups."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from engram.bandits.environments.classes import LabeledRows, classes
from engram.bandits.environments.environment import Environment
from engram.bandits.environments.ratings import Rated, ratings
from federation.data.arrivals import GROUPED, grouped_users
from federation.data.bandits import read_classes, read_ratings
from federation.errors import Refused


class Place(NamedTuple):
    """The specification of a world."""

    world: str  # name of ``WORLDS``
    # Data sets, as ``read_classes`` takes them, or the path of a table of ratings.
    sources: tuple[str, ...]
    columns: tuple[str, ...]  # the table's columns of users, items and stars
    data_dir: str  # where torchvision's data sets are


class Kind(NamedTuple):
    """A kind of world."""

    title: str  # its name in reports
    needs: str  # describes the ``sources`` that it needs; empty if none
    draw: Callable[[Place, int, int], Environment]  # ``(place, horizon, seed) -> world``


def _classes(place: Place, horizon: int, seed: int, groups: int | None = None) -> Environment:
    named = place.sources or ("digits", "permuted-digits")
    datasets = [_rows(name, place.data_dir) for name in named]
    return classes(datasets, horizon=horizon, seed=seed, groups=groups)


def _ratings(place: Place, horizon: int, seed: int) -> Environment:
    return ratings(_rated(place.sources[0], place.columns), horizon=horizon, seed=seed)


def _grouped(place: Place, horizon: int, seed: int) -> Environment:
    return grouped_users(GROUPED[place.world], users=30, horizon=horizon, seed=seed)


@functools.cache
def _rows(name: str, data_dir: str) -> LabeledRows:
    return read_classes(name, data_dir=Path(data_dir))


@functools.cache
def _rated(path: str, columns: tuple[str, ...]) -> Rated:
    return read_ratings(Path(path), columns=columns)


_IN_GROUPS: Final = functools.partial(_classes, groups=2)
_DATASETS: Final = "one or more data sets, such as mnist or npz:PATH"

WORLDS: Final[Mapping[str, Kind]] = {
    "digits": Kind("digits, and digits with pixels permuted", "", _classes),
    "digits-groups": Kind("digits, and digits with pixels permuted, in groups", "", _IN_GROUPS),
    "classes": Kind("classes of data sets", _DATASETS, _classes),
    "classes-groups": Kind("classes of data sets, in groups", _DATASETS, _IN_GROUPS),
    "ratings": Kind("ratings", "one CSV file", _ratings),
    "linear-groups": Kind("groups with linear rewards", "", _grouped),
    "cosine-groups": Kind("groups with cosine rewards", "", _grouped),
}


def place_problems(name: str, sources: Sequence[str], columns: str) -> Iterator[str]:
    """Says what is wrong with a world's sources, and with the columns of a table of ratings."""
    needs, given = WORLDS[name].needs, " ".join(sources) or "nothing"
    ok = len(sources) == 1 if name == "ratings" else bool(sources) == bool(needs)
    if not ok:
        yield f"{name} takes {needs or 'no sources'}, got {given}"
    if len(columns.split(",")) != 3:
        yield f"columns must be three, of users, items and stars, got {columns}"


def world(place: Place, horizon: int, seed: int) -> Environment:
    """Draws a world of ``horizon`` rounds.

    Raises:
        Refused: If its sources cannot be read, or are unsuitable.
    """
    try:
        return WORLDS[place.world].draw(place, horizon, seed)
    except Refused:
        raise
    except ValueError as error:
        raise Refused(f"{place.world}: {error}") from error
