"""The schema of a table, as a proposal that a person edits."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from federation.data.describing import frame_of
from federation.data.schema.fitting import fit
from federation.data.schema.written import to_toml
from federation.data.source import Source
from federation.data.values import Columns
from federation.experiment import Experiment
from federation.schema import Role
from federation.settings.data import DataSettings, with_schema

_SUFFIXES: Final = (".csv", ".xlsx", ".npz", ".parquet", ".arrow")


def described(data: str, overrides: Mapping[str, Any]) -> str:
    """Returns the schema of a table as TOML, with comments on what is uncertain.

    Args:
        data: A file, or KIND:PATH.
        overrides: Settings of the data, by key.

    Raises:
        Refused: It cannot be read, or is no table with names of columns.
    """
    suffix = Path(data).suffix
    source = Source(f"{suffix.removeprefix('.')}:{data}" if suffix in _SUFFIXES else data)
    columns = Columns.of(DataSettings.model_validate(with_schema(overrides)))
    cache = Path(Experiment().data_dir)
    frame = frame_of(source if source.is_file else Source(data), cache, columns.schema.file)
    target = columns.target if columns.target in frame else ""
    found = fit(frame, columns.schema, target=target, others=[columns.task])
    roles: dict[str, Role] = {target: "target", columns.task: "client"}
    known = (replace(c, role=roles.get(c.name, c.role)) for c in found.schema.columns)
    return to_toml(replace(found.schema, columns=tuple(known)), found.questions)
