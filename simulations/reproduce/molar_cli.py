"""``engram reproduce molar-bandit``."""

from typing import Annotated, Final

import typer

from federation.errors import Refused
from simulations.options import Json, Out, find_run, make_folder, new_folder
from simulations.reproduce.plan import read_plan, write_plan
from simulations.reproduce.report import record
from simulations.terminal import out as console
from simulations.terminal import progress_lines

__all__ = ["molar_bandit"]

_EXPERIMENT: Final = "molar-bandit"


def molar_bandit(
    horizon: Annotated[
        int | None, typer.Option(metavar="T", help="Rounds of a trial; default 5000.")
    ] = None,
    trials: Annotated[int | None, typer.Option(metavar="N", help="Default 20.")] = None,
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
    # Inside, since scikit-learn takes a second, which no other command should wait for.
    from simulations.reproduce import molar_bandit as bandits  # noqa: PLC0415
    from simulations.reproduce import molar_bandit_report as report  # noqa: PLC0415

    if resume is None:
        plan = bandits.BanditPlan(
            _EXPERIMENT, 5000 if horizon is None else horizon, 20 if trials is None else trials
        )
        folder = new_folder(out, _EXPERIMENT)
    elif (horizon, trials, out) == (None, None, None):
        folder = find_run(resume)
        plan = read_plan(folder, bandits.BanditPlan, _EXPERIMENT)
    else:
        raise Refused("--resume goes on with a reproduction as it was begun: give nothing else")
    begun = resume is not None

    def hint() -> str:
        command = f"go on with: engram reproduce {_EXPERIMENT} --resume {folder}"
        return command if begun else "nothing has been written"

    def begin() -> None:
        nonlocal begun
        if not begun:
            make_folder(folder)
            write_plan(folder, plan)
            begun = True

    with progress_lines("trials", hint) as new_line:
        tell = new_line("bandits", plan.trials)
        done = bandits.carry_out(plan, folder, begin=begin, tell=tell)
    rows = report.summary(done)
    console.print(report.CAPTION, report.table(rows), sep="\n")
    record(rows, report.draw_figures(done), folder, as_json)
