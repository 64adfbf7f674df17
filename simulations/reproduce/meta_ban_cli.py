"""``engram reproduce meta-ban``."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from simulations.options import Json, Out, new_folder
from simulations.reproduce.commands import plan_and_folder, watched
from simulations.reproduce.jobs import Tell, run_jobs
from simulations.reproduce.report import record_found
from simulations.terminal import out as console

__all__ = ["meta_ban"]

_NAME: Final = "meta-ban"


def meta_ban(
    world: Annotated[
        str | None, typer.Argument(metavar="[WORLD]", help="Where; default digits.")
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE]...", help="Data sets of classes, or a CSV of ratings."),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", metavar="NAME", help="May be repeated; default all."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(metavar="T", max=10**8, help="Default 2000.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", max=1000, help="Worlds; default 5.")
    ] = None,
    ablation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Also Figure 4: nu, with gamma = 0.4.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="U,I,R", help="Of the CSV; default user,item,rating."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where mnist is, or goes; default data.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Trials that run beside each other; default: one a core."),
    ] = None,
    out: Out = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with one: its folder, or name in runs/."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Collaborative bandits: Figures 1 to 4 of the Meta-Ban paper (Sec. 7).

    WORLD is digits (20 users), digits-groups (the right arm depends on the
    image and the user's group), classes or classes-groups (the same of data
    sets, such as mnist or npz:PATH), ratings (a CSV with a rating a row),
    linear-groups or cosine-groups (users whose groups are known).

    NAME is meta-ban, neural-ucb-one, neural-ucb-ind, neural-ts, club, sclub,
    cofiba, locb, linucb-one, linucb-ind, epsilon-greedy, molar or random. Each
    has twelve settings; the best in two worlds is played in N other ones.
    """
    # Inside, since scikit-learn and numba take seconds, which no other command should wait for.
    from simulations.reproduce import meta_ban as bandits  # noqa: PLC0415
    from simulations.reproduce import meta_ban_report as report  # noqa: PLC0415
    from simulations.reproduce.meta_ban_methods import METHODS  # noqa: PLC0415
    from simulations.reproduce.meta_ban_worlds import COLUMNS, WORLDS  # noqa: PLC0415

    plan, folder = plan_and_folder(
        _NAME,
        resume,
        [world, sources, methods, rounds, seeds, ablation, columns, data_dir, out],
        bandits.MetaBanPlan,
        lambda: bandits.MetaBanPlan(
            experiment=_NAME,
            world=world or "digits",
            sources=tuple(sources or ()),
            columns=COLUMNS if columns is None else tuple(columns.split(",")),
            data_dir=str((data_dir or Path("data")).absolute()),
            methods=tuple(methods or METHODS),
            rounds=2000 if rounds is None else rounds,
            seeds=5 if seeds is None else seeds,
            ablation=ablation or "",
        ),
        lambda: new_folder(out, f"{_NAME}-{world or 'digits'}"),
    )
    ablated: list[dict[str, Any]] = []

    def work(begin: Callable[[], None], tell: Tell) -> list[dict[str, Any]]:
        drawn = bandits.check(plan)
        begin()

        def run(trials: dict[str, bandits.Trial]) -> list[dict[str, Any]]:
            count = processes or os.cpu_count() or 1
            return run_jobs(trials, bandits.run_trial, folder, processes=count, tell=tell)

        settings = bandits.choose(run(bandits.tuning_trials(plan, drawn)))
        ablated.extend(run(bandits.ablation_trials(plan, drawn, settings)))
        return run(bandits.final_trials(plan, drawn, settings))

    done = watched(plan, folder, begun=resume is not None, unit="rounds", work=work)
    rows, kinds = report.summary(done), report.found_in(ablated)
    title = WORLDS[plan.world].title
    console.print(report.caption(title, plan.rounds, plan.seeds), report.table(rows), sep="\n")
    console.print(report.in_words(rows), *report.recovery_lines(rows), sep="\n", soft_wrap=True)
    if kinds:
        console.print(report.ablation_table(kinds, plan.ablation))
    figures = report.draw_figures(done, ablated, plan.ablation)
    record_found({"rows": rows, "ablation": kinds}, figures, folder, as_json)
