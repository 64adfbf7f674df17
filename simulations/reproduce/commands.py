"""What the commands of ``engram reproduce`` do alike: begin or go on, and show how far they are."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from federation.errors import Refused
from simulations.options import find_run, make_folder
from simulations.reproduce.jobs import Tell
from simulations.reproduce.plan import read_plan, write_plan
from simulations.terminal import progress_lines

if TYPE_CHECKING:  # for it is there for type checkers alone
    from _typeshed import DataclassInstance

    class _Plan(DataclassInstance, Protocol):
        @property
        def experiment(self) -> str: ...


__all__ = ["plan_and_folder", "watched"]

AnyPlan = TypeVar("AnyPlan")
Row = dict[str, Any]


def plan_and_folder(
    experiment: str,
    resume: str | None,
    given: Sequence[object],
    kind: Callable[..., AnyPlan],
    make: Callable[[], AnyPlan],
    folder: Callable[[], Path],
) -> tuple[AnyPlan, Path]:
    """Returns what is to be done, and where: anew, or as it was begun.

    Args:
        experiment: Which one.
        resume: A run to go on with, or None.
        given: What else was said of the plan and its folder; None where nothing was.
        kind: Of plans, made of their fields.
        make: Makes the plan.
        folder: Finds its folder.

    Raises:
        Refused: What there is to go on with is something else, or something else was said.
    """
    if resume is None:
        return make(), folder()
    if any(value is not None for value in given):
        raise Refused("--resume goes on with a reproduction as it was begun: give nothing else")
    found = find_run(resume)
    return read_plan(found, kind, experiment), found


def watched(
    plan: "_Plan",
    folder: Path,
    *,
    begun: bool,
    unit: str,
    work: Callable[[Callable[[], None], Tell], list[Row]],
) -> list[Row]:
    """Does what is left of a plan, with a line of progress for each of its jobs.

    Args:
        plan: The plan.
        folder: Its folder.
        begun: Whether that is there already.
        unit: What is counted in a job.
        work: Does it. It is given what makes the folder, to be called once nothing is refused any
            more, and what is to be told how far a job is.

    Raises:
        SystemExit: Ctrl-C was pressed; status 130.
    """

    def hint() -> str:
        command = f"go on with: engram reproduce {plan.experiment} --resume {folder}"
        return command if begun else "nothing has been written"

    def begin() -> None:
        nonlocal begun
        if not begun:
            make_folder(folder)
            write_plan(folder, plan)
            begun = True

    lines: dict[str, Callable[[int, str], None]] = {}
    with progress_lines(unit, hint) as new_line:

        def tell(name: str, done: int, total: int) -> None:
            if name not in lines:
                lines[name] = new_line(name, total)
            lines[name](done, "")

        return work(begin, tell)
