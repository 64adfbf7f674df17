"""Environments of the Meta-Ban paper's experiments, and simulated ones with known groups."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from engram.bandits.environments.classes import LabeledRows, classes, read_classes
from engram.bandits.environments.environment import Environment
from engram.bandits.environments.ratings import Rated, ratings, read_ratings
from engram.bandits.federation.bandit_turns import GROUPED, grouped_users
from engram.data.source import Source
from engram.settings.errors import Refused


class EnvironmentSpec(NamedTuple):
    """Environment to draw, and its data."""

    kind: str  # name of ``ENVIRONMENTS``
    # Data sets, as ``read_classes`` takes them, or the path of a table of ratings.
    sources: tuple[str, ...]
    columns: tuple[str, ...]  # the table's columns of users, items and stars
    data_dir: str  # where torchvision's data sets are


class EnvironmentKind(NamedTuple):
    """A kind of environment."""

    title: str  # its name in reports
    needs: str  # describes the ``sources`` that it needs; empty if none
    # ``(spec, horizon, seed) -> environment``
    draw: Callable[[EnvironmentSpec, int, int], Environment]


def _classes(
    spec: EnvironmentSpec, horizon: int, seed: int, groups: int | None = None
) -> Environment:
    named = spec.sources or ("digits", "permuted-digits")
    datasets = [_rows(name, spec.data_dir) for name in named]
    return classes(datasets, horizon=horizon, seed=seed, groups=groups)


def _ratings(spec: EnvironmentSpec, horizon: int, seed: int) -> Environment:
    return ratings(_rated(spec.sources[0], spec.columns), horizon=horizon, seed=seed)


def _grouped(spec: EnvironmentSpec, horizon: int, seed: int) -> Environment:
    return grouped_users(GROUPED[spec.kind], users=30, horizon=horizon, seed=seed)


@functools.cache
def _rows(name: str, data_dir: str) -> LabeledRows:
    return read_classes(Source(name), data_dir=Path(data_dir))


@functools.cache
def _rated(path: str, columns: tuple[str, ...]) -> Rated:
    return read_ratings(Path(path), columns=columns)


_IN_GROUPS: Final = functools.partial(_classes, groups=2)
_DATASETS: Final = "one or more data sets, such as mnist or npz:PATH"

ENVIRONMENTS: Final[Mapping[str, EnvironmentKind]] = {
    "digits": EnvironmentKind("digits, and digits with pixels permuted", "", _classes),
    "digits-groups": EnvironmentKind(
        "digits, and digits with pixels permuted, in groups", "", _IN_GROUPS
    ),
    "classes": EnvironmentKind("classes of data sets", _DATASETS, _classes),
    "classes-groups": EnvironmentKind("classes of data sets, in groups", _DATASETS, _IN_GROUPS),
    "ratings": EnvironmentKind("ratings", "one CSV file", _ratings),
    "linear-groups": EnvironmentKind("groups with linear rewards", "", _grouped),
    "cosine-groups": EnvironmentKind("groups with cosine rewards", "", _grouped),
}


def source_problems(name: str, sources: Sequence[str], columns: str) -> Iterator[str]:
    """Returns the faults of an environment's sources, and of the columns of ratings."""
    needs, given = ENVIRONMENTS[name].needs, " ".join(sources) or "nothing"
    ok = len(sources) == 1 if name == "ratings" else bool(sources) == bool(needs)
    if not ok:
        yield f"{name} takes {needs or 'no sources'}, got {given}"
    if len(columns.split(",")) != 3:
        yield f"columns must be three, of users, items and stars, got {columns}"


def draw_environment(spec: EnvironmentSpec, horizon: int, seed: int) -> Environment:
    """Draws an environment of ``horizon`` rounds.

    Raises:
        Refused: If its sources cannot be read, or are unsuitable.
    """
    try:
        return ENVIRONMENTS[spec.kind].draw(spec, horizon, seed)
    except Refused:
        raise
    except ValueError as error:
        raise Refused(f"{spec.kind}: {error}") from error
