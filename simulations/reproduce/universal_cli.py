"""``engram reproduce universal``."""

import os
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from simulations.options import Json, Out, new_folder
from simulations.reproduce.commands import plan_and_folder, watched
from simulations.reproduce.jobs import Tell, run_jobs
from simulations.reproduce.report import plain, record_found
from simulations.terminal import out as console

__all__ = ["universal"]

_NAME: Final = "universal"


def universal(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SETTING]...", help="Which to play; default all."),
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(metavar="T", max=10**8, help="Rounds; default 16000.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", max=1000, help="Draws; default 3.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Draws that are played at once; default: one for each core."),
    ] = None,
    out: Out = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with one: its folder, or name in runs/."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Losses of unknown curvature: the universal ensemble's regret, and others'.

    SETTING is strongly-convex, logistic, squared, absolute, linear, fixed,
    drifting, sea-0.05, sea-0.1, sea-0.2, sea-0.5, sea-1, or a game: bilinear,
    curved, or matrix, each followed by -honest or -dishonest.
    """
    # Inside, since numba takes a second, which no other command should wait for.
    from simulations.reproduce import universal as play  # noqa: PLC0415 - see above
    from simulations.reproduce import universal_report as report  # noqa: PLC0415 - likewise

    plan, folder = plan_and_folder(
        _NAME,
        resume,
        [settings, horizon, seeds, out],
        play.UniversalPlan,
        lambda: play.UniversalPlan(
            _NAME,
            tuple(settings or play.SETTINGS),
            16_000 if horizon is None else horizon,
            3 if seeds is None else seeds,
        ),
        lambda: new_folder(out, _NAME),
    )

    def work(begin: Callable[[], None], tell: Tell) -> list[dict[str, Any]]:
        begin()
        return run_jobs(
            play.matches(plan),
            play.run_match,
            folder,
            processes=processes or os.cpu_count() or 1,
            tell=tell,
        )

    done = watched(plan, folder, begun=resume is not None, unit="learners", work=work)
    rows = report.summary(done)
    console.print(report.CAPTION, *report.tables(rows), sep="\n", soft_wrap=True)
    files = {"curves.csv": report.curves_csv(done), **report.draw_figures(done)}
    record_found({"rows": [plain(row) for row in rows]}, files, folder, as_json)
