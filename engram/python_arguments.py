"""Data, networks and losses that callers in Python give as objects, named for settings."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch.utils.data import Dataset

from engram.arguments import refuse_keys
from engram.compare.settings_for_methods import possible, settings_of_one
from engram.core.checks import must
from engram.data.augmentations import augmentation
from engram.data.labels import likely_task
from engram.data.loading import count_clients, follow_rows
from engram.data.readers.in_memory import Data, arrays_of, hold
from engram.guards.registry import guard
from engram.networks.optimizers import optimizer, schedule
from engram.networks.registry import model
from engram.scoring.metrics import METRICS, metric, name_of
from engram.scoring.tasks import REGRESSION, loss
from engram.settings.errors import Refused
from engram.settings.experiment import by_key, read_by

FUNCTIONS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "loss": loss,
    "augment": augmentation,
    "schedule": schedule,
    "optimizer": optimizer,
    "guards": guard,
}
"""Settings that may be a function: what makes it known by a name."""


def settings_of(
    data: Data | None, method: str | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns settings by key, with a name in place of everything that is given itself.

    Args:
        data: As ``engram.simulate`` takes it; the setting ``dataset`` carries its rows.
        method: The method's name; None if it is not known yet.
        settings: Settings by name. ``model``, ``loss``, ``metrics``, ``optimizer``, ``schedule``,
            ``guards`` and ``augment`` may be what they name.

    Raises:
        DataError: The data are not what they may be.
        Refused: Both data and a data set are given, or a function has no name that it may have.
    """
    given = by_key(settings)
    if data is not None and "dataset" in given:
        raise Refused(must("dataset", given["dataset"], "left out where data are given"))
    named = {} if method is None else {"method": method}
    found = {**_of_data(data, method, given), **given, **named}
    if "dataset" in found and not found.get("resume"):  # a run that goes on has its own
        found = follow_rows(found)
    if not isinstance(found.get("model", ""), str):
        make = found["model"]
        found["model"] = getattr(make, "__name__", type(make).__name__)
        model(make, found["model"])
    try:
        for key, register in FUNCTIONS.items():
            given_itself = found.get(key, "")
            if callable(given_itself) or type(given_itself).__module__.startswith("torch.optim"):
                found[key] = name_of(given_itself)
                register(given_itself, found[key])
        if "metrics" in found:
            found["metrics"] = _metrics(found["metrics"])
    except ValueError as error:
        raise Refused(str(error)) from error
    return found


def _metrics(given: Any) -> Any:
    """Returns metrics by name, where some are functions, one alone or in a list."""
    if not isinstance(given, list | tuple):
        return _metrics([given]) if callable(given) else given
    names = []
    for each in given:
        if not callable(each):
            names.append(each)
            continue
        name = next((name for name in [*METRICS] if METRICS[name].score is each), name_of(each))
        if name not in METRICS or METRICS[name].score is not each:
            metric()(each)
            METRICS[name] = METRICS[name]._replace(declared=False)
        names.append(name)
    plain = bool(names) and all(isinstance(name, str) for name in names)
    return ",".join(names) if plain else names


def settings_of_several(
    data: Data | None, chosen: Sequence[str], settings: Mapping[str, Any], methods: object = ()
) -> dict[str, dict[str, Any]]:
    """Returns each method's settings, as ``settings_of`` does: its own, and others that it has.

    Args:
        data: As for ``settings_of``.
        chosen: The methods that take part.
        settings: Settings for all; those of one method have its name, or are in its table.
        methods: More such tables, by method; or names alone.

    Raises:
        Refused: A setting is given twice, or cannot be one method's; or as ``possible`` says.
    """
    given, own = by_key(settings), by_key(methods) if isinstance(methods, Mapping) else {}
    if twice := [key for key in own if key in given]:
        raise Refused(f"{', '.join(twice)} must be given in methods or beside them, got both")
    given = dict(sorted((given | own).items(), key=lambda item: "." in item[0]))
    of_call = {"method": "methods", "resume": "engram.simulate(resume=RUN)", "out": "out, for all"}
    refuse_keys({key.rpartition(".")[2]: None for key in given}, of_call)
    refuse_keys(given, {f"{name}.seed": "seed, for all of them" for name in chosen})
    each = {name: settings_of(data, name, settings_of_one(name, given)) for name in chosen}
    return possible(each, given)


def _of_data(data: Data | None, method: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    if data is None:
        return {}
    arrays = arrays_of(data)
    source = hold(arrays)
    found: dict[str, Any] = {"dataset": source}
    y = np.asarray(arrays["y"])
    if {"task", "loss"} & given.keys() or not read_by(method, {"task": ""}):
        values = y.dtype.kind == "f"
    else:
        values = likely_task(y) == REGRESSION.name
    found |= {"task": REGRESSION.name} if values else {}
    if isinstance(data, tuple | Dataset):
        named = count_clients(source, str(given.get("task-column", "task")), Path())
        dealt = {"partition": "iid"} if (values or y.ndim > 2) and not named else {}
        return read_by(method, found | dealt)
    return read_by(method, found | {"partition": "natural", "num-clients": len(data)})
