"""``engram reproduce``: the papers' experiments, tuned, run, and set beside what is published."""

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from federation.data.few_shot import WAYS, load_few_shot
from federation.errors import Refused
from simulations.options import Json, Out, new_folder
from simulations.reproduce import one_shot_report, sinewave_report
from simulations.reproduce.commands import plan_and_folder, watched
from simulations.reproduce.jobs import Tell
from simulations.reproduce.meta_ban_cli import meta_ban
from simulations.reproduce.molar_cli import molar_bandit, molar_regression
from simulations.reproduce.molar_table_cli import molar_table
from simulations.reproduce.one_shot import SPLITS, OneShot
from simulations.reproduce.plan import MATCHED, Case, Plan, Steps
from simulations.reproduce.report import record
from simulations.reproduce.sinewave import ALPHA, Sinewave
from simulations.reproduce.sweep import Need, mib
from simulations.reproduce.universal_cli import universal
from simulations.reproduce.universal_stream_cli import universal_stream
from simulations.reproduce.workers import carry_out
from simulations.terminal import err
from simulations.terminal import out as console

__all__ = ["app"]

app = typer.Typer(
    name="reproduce",
    help="Run a paper's experiment, and set the results beside those that it published.",
    no_args_is_help=True,
)

# Of eta: that of Sec. 6.1, and three smaller ones, since with exact Hessians (and where there is a
# memory, whose authors' code multiplies by beta) all of its values may diverge.
GRID = (0.1, 0.05, 0.01, 0.005, 0.001, 0.0005, 0.0002, 0.0001)
# Of eta in one-shot classification, on which the paper is silent; below, nothing moves.
FEW_SHOT_GRID = (1.0, 0.3, 0.1, 0.05, 0.02)

_Methods = Annotated[
    list[str] | None,
    typer.Argument(metavar="[METHOD]...", help="Which to run."),
]
_Iterations = Annotated[
    int | None,
    typer.Option(metavar="N", max=10**9, help="Of MAML; the other methods see as many rows."),
]
_Seeds = Annotated[int | None, typer.Option(min=1, max=1000, help="Runs of each method.")]
_Hessian = Annotated[
    str | None,
    typer.Option(metavar="HOW", help="exact (the default), first-order, finite-difference."),
]
_Tasks = Annotated[
    int | None,
    typer.Option(metavar="B", help="Tasks in an iteration; default 3."),
]
_Tune = Annotated[
    bool,
    typer.Option("--tune", help="Choose eta and beta on a grid, by the training tasks."),
]
_AsPublished = Annotated[
    bool,
    typer.Option("--published", help="The authors' eta and beta, and first-order gradients."),
]
_Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Sweeps that run beside each other; default: one for each core."),
]
_MemoryDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep memories in files there, if they do not fit."),
]
_Resume = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="Go on with one: its folder, or name in runs/."),
]


@app.command()
def sinewave(
    methods: _Methods = None,
    batch_sizes: Annotated[
        list[int] | None,
        typer.Option("--batch-size", "-k", metavar="K", help="May be repeated; default 1 and 3."),
    ] = None,
    iterations: _Iterations = None,
    seeds: _Seeds = None,
    tasks_per_step: _Tasks = None,
    hessian: _Hessian = None,
    tune: _Tune = False,
    published: _AsPublished = False,
    processes: _Processes = None,
    memory_dir: _MemoryDir = None,
    out: Out = None,
    resume: _Resume = None,
    as_json: Json = False,
) -> None:
    """Sinewave regression: Table 3 and Figures 1 and 2 of the MOML paper (Sec. 6.1).

    METHOD is maml, bsgd, reptile, nasa, bspiderboost, moml-v1, moml-v2 or local-moml.

    Without options: 40,000 iterations, 5 seeds, exact Hessians, and the step
    sizes that --tune chose (of LocalMOML at K = 3 smaller: a run diverged).
    """
    given: list[object] = [methods, batch_sizes, iterations, seeds, tasks_per_step]
    given += [hessian, out, tune or None, published or None]
    hessian, steps = _way(hessian, tune, published)
    known = {
        "published": sinewave_report.PUBLISHED_STEPS,
        "recorded": sinewave_report.RECORDED_STEPS[
            "first-order" if hessian == "first-order" else "exact"
        ],
        "tuned": {},
    }
    plan, folder = plan_and_folder(
        "sinewave",
        resume,
        given,
        Plan,
        lambda: Plan(
            experiment="sinewave",
            dataset="",
            data_dir="",
            methods=_known(methods or sinewave_report.TABLE_3, sinewave_report.PUBLISHED_STEPS[1]),
            batch_sizes=tuple(batch_sizes or (1, 3)),
            iterations=40_000 if iterations is None else iterations,
            seeds=tuple(range(seeds or 5)),
            tasks_per_step=3 if tasks_per_step is None else tasks_per_step,
            hessian=hessian,
            alpha=ALPHA,
            adapt_lr=ALPHA,
            steps=steps,
            step_sizes=_texts(known[steps]),
        ),
        lambda: new_folder(out, "sinewave"),
    )
    done = _carry_out(plan, Case(Sinewave, GRID), folder, resume, processes, memory_dir)
    rows = sinewave_report.summary(done)
    console.print(sinewave_report.CAPTION, sinewave_report.table(rows), sep="\n")
    record(rows, sinewave_report.draw_figures(done), folder, as_json)


@app.command()
def one_shot(
    methods: _Methods = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="omniglot (the default) or cifar100.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where its files are; default data.")
    ] = None,
    iterations: _Iterations = None,
    seeds: _Seeds = None,
    tasks_per_step: _Tasks = None,
    hessian: _Hessian = None,
    tune: _Tune = False,
    published: _AsPublished = False,
    processes: _Processes = None,
    memory_dir: _MemoryDir = None,
    out: Out = None,
    resume: _Resume = None,
    as_json: Json = False,
) -> None:
    """One-shot classification: Table 4 of the MOML paper (Sec. 6.2).

    METHOD is maml, reptile, protonet, nasa, moml-v1, moml-v2 or local-moml.

    Without options: Omniglot, 2000 iterations, 3 seeds, exact Hessians, and step
    sizes that do well with these. Tested in 200 episodes of tasks whose classes
    are in no other task.
    """
    given: list[object] = [
        methods,
        dataset,
        data_dir,
        iterations,
        seeds,
        tasks_per_step,
        hessian,
        out,
    ]
    given += [tune or None, published or None]
    hessian, steps = _way(hessian, tune, published)
    (dataset,) = _known(["omniglot" if dataset is None else dataset], SPLITS, "dataset")
    size = WAYS[dataset]  # one row of each class
    known = {
        "published": {size: one_shot_report.PUBLISHED_STEPS[dataset]},
        "recorded": {size: one_shot_report.RECORDED_STEPS},
        "tuned": {},
    }
    # The authors' alpha, and step size of adapting in tests; with ours, one shot tells more.
    alpha, lr = (0.01, 0.05) if published else (0.5, 0.5)
    plan, folder = plan_and_folder(
        "one-shot",
        resume,
        given,
        Plan,
        lambda: Plan(
            experiment="one-shot",
            dataset=dataset,
            data_dir=str((data_dir or Path("data")).absolute()),
            methods=_known(
                methods or one_shot_report.PUBLISHED["omniglot"],
                one_shot_report.PUBLISHED_STEPS["omniglot"],
            ),
            batch_sizes=(size,),
            iterations=2000 if iterations is None else iterations,
            seeds=tuple(range(seeds or 3)),
            tasks_per_step=3 if tasks_per_step is None else tasks_per_step,
            hessian=hessian,
            alpha=alpha,
            adapt_lr=lr,
            steps=steps,
            step_sizes=_texts(known[steps]),
        ),
        lambda: new_folder(out, f"one-shot-{dataset}"),
    )
    make = functools.partial(_one_shot, plan.dataset, Path(plan.data_dir), plan.adapt_lr)
    case = Case(make, FEW_SHOT_GRID)
    done = _carry_out(plan, case, folder, resume, processes, memory_dir)
    rows = one_shot_report.summary(done, plan.dataset)
    console.print(one_shot_report.CAPTION, one_shot_report.table(rows), sep="\n")
    record(rows, one_shot_report.draw_figures(done), folder, as_json)


app.command()(molar_regression)
app.command()(molar_bandit)
app.command()(molar_table)
app.command()(meta_ban)
app.command()(universal)
app.command()(universal_stream)


def _one_shot(dataset: str, data_dir: Path, lr: float) -> OneShot:
    return OneShot(load_few_shot(dataset, data_dir), SPLITS[dataset], lr=lr)


def _way(hessian: str | None, tune: bool, published: bool) -> tuple[str, str]:
    """Returns how Hessians are treated, and where step sizes come from."""
    if tune and published:
        raise Refused("--tune and --published exclude each other")
    if published and hessian not in (None, "first-order"):
        raise Refused(f"--published is first-order, got --hessian {hessian}")
    if published:
        return "first-order", "published"
    return "exact" if hessian is None else hessian, "tuned" if tune else "recorded"


def _texts(steps: Mapping[int, Steps]) -> dict[str, Steps]:
    """Returns step sizes as a plan has them."""
    return {str(size): of for size, of in steps.items()}


def _known(names: Iterable[str], known: Iterable[str], what: str = "method") -> tuple[str, ...]:
    """Returns names that an experiment has."""
    for name in names:
        if name not in known:
            raise Refused(f"{what} must be one of {', '.join(known)}, got {name!r}")
    return tuple(names)


def _carry_out(
    plan: Plan,
    case: Case,
    folder: Path,
    resume: str | None,
    processes: int | None,
    memory_dir: Path | None,
) -> list[dict[str, Any]]:
    """Does what is left, with a line of progress for each sweep."""

    def work(begin: Callable[[], None], tell: Tell) -> list[dict[str, Any]]:
        def begin_with(needs: Sequence[Need]) -> None:
            begin()
            for resident in (False, True):
                size = sum(need.size for need in needs if need.resident == resident)
                if size:
                    place = "memory" if resident or memory_dir is None else str(memory_dir)
                    err.print(f"tasks' models take {mib(size)} in {place}", soft_wrap=True)

        return carry_out(
            plan,
            case,
            folder,
            processes=processes or os.cpu_count() or 1,
            begin=begin_with,
            tell=lambda name, *far: tell(name.replace(f"+{MATCHED}", ""), *far),
            memory_dir=memory_dir,
        )

    return watched(plan, folder, begun=resume is not None, unit="iterations", work=work)
