"""``engram tune``: finds settings of methods, on validation rows."""

from typing import Annotated

import typer

from engram.cli.arguments import arguments
from engram.cli.options import (
    SEE_SETTINGS,
    Config,
    Json,
    Out,
    Processes,
    Ray,
    SchemaFile,
    Set,
    Yes,
    data_name,
    find_run,
    folder_of_command,
    overrides_of,
)
from engram.compare.settings_for_methods import TRAINING_NETWORKS, check_trained, settings_of_each
from engram.settings.errors import Refused, told_with
from engram.settings.process_starts import end_at_once

__all__ = ["app"]

app = typer.Typer()


@app.command(epilog=SEE_SETTINGS)
def tune(
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD...", help="What to find settings of.")
    ] = None,
    trials: Annotated[
        str | None,
        typer.Option(metavar="N", help="Settings to try, of each method; default 32."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N", help="Runs of each, from `seed` upwards; default 3."),
    ] = None,
    minutes: Annotated[
        str | None, typer.Option(metavar="N", help="Stop each method's search after so long.")
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=LOW..HIGH[:log]",
            help="Search a setting here, or among KEY=VALUE,VALUE,...; may be repeated. Default: "
            "the method's own settings and adapt-lr, in the ranges that they declare.",
        ),
    ] = None,
    sets: Set = None,
    config: Config = None,
    schema: SchemaFile = None,
    yes: Yes = False,
    out: Out = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on with a search: its folder, or name.")
    ] = None,
    processes: Processes = None,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Find settings of methods that train networks, on rows held out for validation.

    What is given by --set is not searched. The files `best.toml` are for --config: of `engram run`
    those of each method, of `engram compare` the one of all methods.
    """
    if resume is not None and (
        methods or trials or seeds or search or sets or config or schema or yes or out
    ):
        raise Refused(
            "--resume goes on with a search as it was begun: give --minutes, --processes or --ray"
        )
    given, wrong = arguments(
        "--",
        trials=trials or 32,
        seeds=seeds or 3,
        minutes=minutes,
        search=search or [],
        processes=processes,
        out=out,
    )
    if resume is None and not methods:
        raise Refused(f"METHOD must be {TRAINING_NETWORKS}, got none")
    check_trained("tune", methods or ())
    fixed = told_with(
        wrong, lambda: settings_of_each(methods or [], overrides_of(config, sets, schema, yes))
    )
    with end_at_once():
        from engram.tune.command import new_tuning, run_tuning
        from engram.tune.folder import Tuning
    if resume is not None:
        folder = find_run(resume)
        tuning = Tuning.open(folder)._replace(minutes=given.minutes)
    else:
        tuning = new_tuning(fixed, given.search, given.trials, given.seeds, given.minutes)
        folder = folder_of_command(given.out, f"tune-{data_name(tuning.first)}")
    again = f"engram tune --resume {folder}"
    run_tuning(tuning, folder, again, processes=given.processes, ray=ray, as_json=as_json)
