"""The commands that ask a federation's sites about their tables, before anything trains."""

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.table import Table

from engram.arguments import overrides_of
from engram.cli import options, work
from engram.cli.console import err, out, table_of
from engram.cli.deployed_cli import for_federation, for_server
from engram.cli.options import argument, flag, option
from engram.link.credentials import read_server
from engram.settings.errors import Refused, few_names, one_line, say
from engram.settings.files import replace_file

if TYPE_CHECKING:
    from engram.sites.agreement import Finding
    from engram.sites.schema_survey import Survey

_MOST_SHOWN: Final = 200  # columns

app = typer.Typer()


def check_on(overrides: Mapping[str, Any], federation: Path) -> None:
    """Shows who could take part in a run on a deployed federation, and trains nothing.

    For its arguments and errors see ``deployed_cli.run_on``.

    Raises:
        SystemExit: Some site could not; status 1.
    """
    experiment = for_server(overrides, federation)
    found = work.survey_deployed(experiment, federation, check=True)
    told = work.checked(found, experiment)
    rows = found.rows or {}
    for client, count in sorted(rows.items()):
        approval = ", once its site approves the run" if client in found.approving else ""
        say(f"client-{client}: takes part, with {count} rows to train on{approval}")
    _tell(told)
    _show_columns(found, experiment.to_config())
    able = f"{len(rows)} of {len(rows) + len(found.absent or {})} sites can take part"
    say(f"{experiment.method} on {federation}: {able}; nothing was trained")
    if found.absent or not rows:
        raise SystemExit(1)


@app.command(epilog=options.SEE_SETTINGS)
def schema(
    server: Annotated[
        Path,
        argument(
            "SERVER_FOLDER|DATA",
            "The folder `server` of a federation; or a table: a file, or KIND:PATH.",
        ),
    ],
    target: Annotated[
        list[str] | None,
        option("COLUMN", "The column to predict; may be repeated: others that are no inputs."),
    ] = None,
    sets: options.Set = None,
    config: options.Config = None,
    written: options.SchemaFile = None,
    partial: Annotated[
        bool, flag("--partial", "Do without sites that do not describe their tables.")
    ] = False,
    union: Annotated[
        bool, flag("--union", "Keep columns that some sites lack: there, all values are missing.")
    ] = False,
    save: Annotated[
        Path | None, option("FILE", "Write a table's schema to a file.", "--out")
    ] = None,
) -> None:
    """Have sites agree on their tables' columns, or describe a table.

    Of a table, the schema is printed: the kind of each column, and what else it may be where that
    is uncertain. An edited copy in a file is taken by the setting `schema`.

    Each node describes its own table, by its own schema: names, types, values, missing values and
    ranges that enough rows share. What is wrong is told of all sites at once, with what mends it.
    The settings by which all of them are read alike are written into SERVER_FOLDER/schema.toml, and
    runs on the federation read them.
    """
    overrides = overrides_of(config, sets, written)
    if not server.is_dir():
        given = {"target-column": target[0]} if target else {}
        text = work.described(str(server), given | overrides)
        if save is None:
            out.print(text, end="", soft_wrap=True, markup=False, highlight=False)
            return
        if save.exists():
            raise Refused(f"{save} is there already: give another name")
        replace_file(save, text.encode())
        say(f"{save}: written; edit it, then: engram run --schema {save}")
        return
    targets = target or [str(overrides[key]) for key in ("target-column",) if key in overrides]
    if not targets:
        raise Refused("--target must name the column to predict, such as --target outcome")
    given = dict(overrides) if target is None else {"target-column": targets[0]} | overrides
    experiment = for_federation(given, read_server(server).settings.clients)
    found = work.survey_deployed(experiment, server)
    settings, told = work.agreed(found, overrides, targets, union=union)
    _tell(told)
    _show_columns(found, settings)
    if found.silent and not partial:
        raise Refused(
            "no schema is written, since some sites do not describe their tables: mend that, or do "
            "without them by --partial"
        )
    path = work.write_schema(server, settings)
    stopped = sorted({finding.site for finding in told if finding.stops})
    if stopped:
        say(f"{path}: written; {few_names(stopped)} cannot take part before the above is mended")
        raise SystemExit(1)
    say(f"{path}: written; next: engram run METHOD --federation {server} --check")


@app.command()
def statistics(
    server: options.Server,
    as_csv: Annotated[bool, flag("--csv", "Print the table as CSV, and nothing else.")] = False,
    survival: Annotated[
        bool, flag("--survival", "Survival curves of all sites, and of each, in place of columns.")
    ] = False,
) -> None:
    """Show columns of all sites' tables: rows, missing values, means and quantiles.

    A node reads its table by its own schema, and tells no figure of fewer rows than its policy
    demands.
    """
    experiment = for_federation({}, read_server(server).settings.clients)
    found = work.survey_deployed(experiment, server)
    for client, why in found.silent.items():
        err.print(f"client-{client}: {one_line(why)}", markup=False, soft_wrap=True)
    names = (work.CurvePoint if survival else work.Statistics)._fields
    lines, remarks = work.curves(found.named) if survival else (work.statistics(found.named), [])
    rows = [[("" if x is None else str(x)) for x in row] for row in lines]
    say(*remarks, file=sys.stderr)
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([names, *rows])
        return
    table = Table(*names, box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for row in rows[:_MOST_SHOWN]:
        table.add_row(*map(one_line, row))
    out.print(table)
    if len(rows) > _MOST_SHOWN:
        say(f"... {len(rows)} rows in all: --csv has them")


def _tell(told: "Sequence[Finding]") -> None:
    sites = dict[str, list[str]]()
    for finding in told:
        sites.setdefault(finding.text, []).append(finding.site)
    for text, named in sites.items():
        say(f"{few_names(named)}: {text}")


def _show_columns(found: "Survey", settings: Mapping[str, Any]) -> None:
    if not found.tables:
        return
    columns = ("column", "kind", "values, or medians of sites", "missing")
    rows = work.summary(found.named, settings)[:_MOST_SHOWN]
    out.print(table_of(columns, rows, title="columns"))
