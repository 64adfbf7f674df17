"""The entry points, and each one's share of cases."""

from collections.abc import Mapping
from typing import Final

from tests.fuzz import commands, data, folders, messages, settings
from tests.fuzz.harness import Case

_WEIGHTS: Final[dict[str, tuple[Case, int]]] = {
    "command lines": (commands.command, 18),
    "runs": (settings.one_run, 14),
    "data": (settings.data_of, 8),
    "run config": (settings.run_config, 6),
    "config files": (settings.config_file, 6),
    "node config": (settings.node_config, 2),
    "npz, networks": (data.classes_npz, 7),
    "npy folders": (data.npy_folder, 5),
    "images": (data.images, 4),
    "parquet, arrow": (data.columns_file, 6),
    "npz, tables": (data.table_npz, 6),
    "csv": (data.table_csv, 8),
    "studies' data": (data.ratings_csv, 3),
    "run folders": (folders.run_folder, 14),
    "checkpoints": (folders.checkpoint, 5),
    "models": (folders.model, 10),
    "memories": (folders.memory, 5),
    "federations": (folders.federation, 5),
    "rosters": (messages.rosters, 3),
    "contents": (messages.contents, 2),
    "estimates": (messages.estimates, 3),
    "rounds": (messages.rounds, 4),
}

ENTRIES: Final[dict[str, Case]] = {name: case for name, (case, _) in _WEIGHTS.items()}
"""Entry points by name."""


def shares(cases: int) -> Mapping[str, range]:
    """Returns the numbers of each entry point's cases, ``cases`` in all or a few more."""
    whole = sum(weight for _, weight in _WEIGHTS.values())
    return {name: range(-(-cases * weight // whole)) for name, (_, weight) in _WEIGHTS.items()}
