"""``engram reproduce molar-regression`` and ``molar-bandit``."""

import os
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from simulations.options import Json, Out, new_folder
from simulations.reproduce.commands import plan_and_folder, watched
from simulations.reproduce.jobs import Tell, run_jobs
from simulations.reproduce.report import record
from simulations.terminal import out as console

__all__ = ["molar_bandit", "molar_regression"]

_REGRESSION: Final = "molar-regression"
_BANDIT: Final = "molar-bandit"


def molar_regression(
    figures: Annotated[
        list[int] | None,
        typer.Option(
            "--figure", metavar="N", help="2, 3, 8 or 9; may be repeated; default 2, 3 and 8."
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(metavar="N", max=10_000, help="Default 10.")] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Trials that run beside each other; default: one for each core."),
    ] = None,
    out: Out = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with one: its folder, or name in runs/."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Multitask linear regression: Figures 2, 3, 8, 9 of the MOLAR paper (Sec. 4.1).

    The l1 error of MOLAR and of other estimators, as the rows of a task, the
    tasks, and the coefficients in which they differ become more (2), with
    correlated covariates and unequal sizes (8), and beside debiasing around the
    median (9); and MOLAR's as the coefficients become more (3).
    """
    # Inside, since scikit-learn takes a second, which no other command should wait for.
    from simulations.reproduce import molar_regression as regression  # noqa: PLC0415 - see above
    from simulations.reproduce import molar_report as report  # noqa: PLC0415 - likewise

    plan, folder = plan_and_folder(
        _REGRESSION,
        resume,
        [figures, trials, out],
        regression.RegressionPlan,
        lambda: regression.RegressionPlan(
            _REGRESSION, tuple(figures or (2, 3, 8)), 10 if trials is None else trials
        ),
        lambda: new_folder(out, _REGRESSION),
    )

    def work(begin: Callable[[], None], tell: Tell) -> list[dict[str, Any]]:
        begin()
        return run_jobs(
            regression.trials(plan),
            regression.run_trial,
            folder,
            processes=processes or os.cpu_count() or 1,
            tell=tell,
        )

    done = watched(plan, folder, begun=resume is not None, unit="steps", work=work)
    rows = report.summary(done)
    console.print(report.CAPTION, *report.tables(rows), sep="\n")
    record(rows, report.draw_figures(rows), folder, as_json)


def molar_bandit(
    horizon: Annotated[
        int | None, typer.Option(metavar="T", max=10**8, help="Rounds of a trial; default 5000.")
    ] = None,
    trials: Annotated[int | None, typer.Option(metavar="N", max=10_000, help="Default 20.")] = None,
    out: Out = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with one: its folder, or name in runs/."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Multitask contextual bandits: Figure 4 of the MOLAR paper (Sec. 4.1).

    The regret of MOLARB and of four other policies, in 20 bandits with 3 arms
    whose 30 coefficients differ from each other in few.
    """
    from simulations.reproduce import molar_bandit as bandits  # noqa: PLC0415 - as above
    from simulations.reproduce import molar_bandit_report as report  # noqa: PLC0415

    plan, folder = plan_and_folder(
        _BANDIT,
        resume,
        [horizon, trials, out],
        bandits.BanditPlan,
        lambda: bandits.BanditPlan(
            _BANDIT, 5000 if horizon is None else horizon, 20 if trials is None else trials
        ),
        lambda: new_folder(out, _BANDIT),
    )

    def work(begin: Callable[[], None], tell: Tell) -> list[dict[str, Any]]:
        def told(done: int, found: str) -> None:
            del found
            tell("bandits", done, plan.trials)

        return bandits.carry_out(plan, folder, begin=begin, tell=told)

    done = watched(plan, folder, begun=resume is not None, unit="trials", work=work)
    rows = report.summary(done)
    console.print(report.CAPTION, report.table(rows), sep="\n")
    record(rows, report.draw_figures(done), folder, as_json)
