"""The schema of a table, as a proposal that a person edits."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from engram.data.readers.csv_files import dialect
from engram.data.readers.table_files import EXCEL, TEXTS
from engram.data.schema.declared import declare
from engram.data.schema.fitting import fit
from engram.data.schema.written import to_toml
from engram.data.source import Source
from engram.data.tables.column_summaries import frame_of
from engram.settings.data import DataSettings, with_schema
from engram.settings.experiment import Experiment

_KINDS: Final = {
    **dict.fromkeys(TEXTS, "csv"),
    **dict.fromkeys(EXCEL, "xlsx"),
    **{f".{kind}": kind for kind in ("npz", "parquet", "arrow")},
}


def described(data: str, overrides: Mapping[str, Any]) -> str:
    """Returns the schema of a table as TOML, with comments on uncertain columns.

    Args:
        data: A file, or KIND:PATH.
        overrides: Settings of the data, by key.

    Raises:
        Refused: It cannot be read, or is no table with names of columns.
    """
    source, kind = Source(data), _KINDS.get(Path(data).suffix.lower())
    if kind and not source.is_file:
        source = Source(f"{kind}:{data}")
    known = declare(DataSettings.model_validate(with_schema(overrides)))
    cache = Path(Experiment().data_dir)
    file = known.schema.file
    if source.kind == "csv":
        file = dialect(source.path, file)
        file = replace(file, separator=file.separator.removeprefix(","))
    frame = frame_of(source, cache, replace(known.schema, file=file))
    target = known.target if known.target in frame else ""
    if known.text:  # the only input
        frame = frame[[n for n in frame if n in (known.text.name, target, known.client)]]
    found = fit(frame, known.schema, target=target, others=[known.client], of_all=True)
    columns = found.schema.columns
    marks = {column.decimal for column in columns if column.kind == "number"}
    if marks == {","}:  # of all of the file
        file = replace(file, decimal=",")
        columns = tuple(replace(column, decimal="") for column in columns)
    schema = replace(found.schema, columns=columns, file=file)
    return to_toml(schema, [*found.constants, *found.questions])
