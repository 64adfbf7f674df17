"""The entry points, and each one's share of cases."""

from collections.abc import Mapping
from typing import Final

from benchmarks.fuzz import commands, data, folders, messages
from benchmarks.fuzz.harness import Case

_WEIGHTS: Final[dict[str, tuple[Case, int]]] = {
    "settings": (commands.settings, 14),
    "config files": (commands.config_file, 10),
    "node config": (commands.node_config, 4),
    "command lines": (commands.command, 12),
    "tiny runs": (commands.tiny_run, 6),
    "npz, classes": (data.classes_npz, 9),
    "npz, tables": (data.table_npz, 8),
    "csv, tables": (data.table_csv, 7),
    "csv, bandits": (data.bandit_table, 4),
    "csv, ratings": (data.ratings_csv, 3),
    "run folders": (folders.run_folder, 5),
    "checkpoints": (folders.checkpoint, 4),
    "memories": (folders.memory, 6),
    "federations": (folders.federation, 6),
    "rosters": (messages.rosters, 5),
    "bundles": (messages.bundles, 4),
    "estimates": (messages.estimates, 6),
    "rounds": (messages.rounds, 5),
}

ENTRIES: Final[dict[str, Case]] = {name: case for name, (case, _) in _WEIGHTS.items()}
"""Entry points by name."""


def shares(cases: int) -> Mapping[str, range]:
    """Returns the numbers of each entry point's cases, ``cases`` in all or a few more."""
    whole = sum(weight for _, weight in _WEIGHTS.values())
    return {name: range(-(-cases * weight // whole)) for name, (_, weight) in _WEIGHTS.items()}
