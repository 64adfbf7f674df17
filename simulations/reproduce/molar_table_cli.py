"""``engram reproduce molar-table``."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from federation.errors import DataError, Refused
from simulations.options import Json, Out, make_folder, new_folder
from simulations.terminal import Tell, err, progress_lines
from simulations.terminal import out as console

__all__ = ["molar_table"]

_KINDS: Final = {".csv": "csv", ".npz": "npz"}
_UNITS: Final = {"logistic": "log-odds", "poisson": "log of the mean"}
_SHOWN: Final = 20  # tasks that lack something, on the screen


def molar_table(
    path: Annotated[
        Path,
        typer.Argument(metavar="TABLE", help="A .csv file with a header, or an .npz file."),
    ],
    task: Annotated[
        str, typer.Option(metavar="COLUMN", help="Says which task (site, country) a row is of.")
    ],
    target: Annotated[str, typer.Option(metavar="COLUMN", help="What is to be predicted.")],
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="One that is no feature; may be repeated."),
    ] = None,
    family: Annotated[
        str, typer.Option(metavar="NAME", help="linear, logistic (target 0 or 1) or poisson.")
    ] = "linear",
    soft: Annotated[bool, typer.Option("--soft", help="Soft thresholding; default hard.")] = False,
    c: Annotated[
        float, typer.Option(metavar="C", help="Scale of the threshold; 0 shares nothing.")
    ] = 1.0,
    level: Annotated[float, typer.Option(metavar="P", help="Of the intervals.")] = 0.95,
    missing: Annotated[
        str,
        typer.Option(metavar="HOW", help="error; or indicator: 0, and a column that says where."),
    ] = "error",
    splits: Annotated[
        int, typer.Option(min=0, help="Random ones, to compare methods in; 0: no comparison.")
    ] = 10,
    train: Annotated[
        float, typer.Option(metavar="SHARE", help="Of rows to learn from, in a split.")
    ] = 0.6,
    validation: Annotated[
        float, typer.Option(metavar="SHARE", help="Of rows to choose constants by.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Of the splits.")] = 0,
    everything: Annotated[
        bool, typer.Option("--all", help="Print all coefficients of all tasks.")
    ] = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """MOLAR on your own table: a regression for each task, most of it shared.

    Prints the shared coefficients and where tasks differ from them, with
    intervals; draws the heterogeneity (Figure 1 of the MOLAR paper); and
    compares errors on held-out rows with other methods (App. J.2, which has
    --train 0.05 --validation 0.05 --splits 100).
    """
    # Inside, since scikit-learn takes a second, which no other command should wait for.
    from federation.data.tables import read_table  # noqa: PLC0415
    from simulations.reproduce import molar_table as tables  # noqa: PLC0415
    from simulations.reproduce import molar_table_report as report  # noqa: PLC0415
    from simulations.reproduce import molar_table_scores as scores  # noqa: PLC0415
    from simulations.reproduce.report import plain, record_found  # noqa: PLC0415

    name, shares = tables.family_name(family), tables.Shares(train, validation)
    dataset = _check(path, task, target, c=c, level=level, missing=missing, shares=shares)
    folder = new_folder(out, f"molar-table-{path.stem}")
    with progress_lines("splits", lambda: "nothing has been written") as new_line:
        table = read_table(dataset, target, task, drop=drop or ())
        table = tables.complete(table, name, indicators=missing == "indicator")
        model = tables.fit_all(table, name, "soft" if soft else "hard", c)
        found, lacks = report.coefficients(model, level), tables.lacking(table, model, name)
        each = tables.compare(table, name, shares, splits=splits, seed=seed)
        done = _told(each, new_line("comparison", splits))
    rows, columns = table.x.shape
    console.print(
        f"{path}: {rows} rows of {len(found.tasks)} tasks, {columns} columns\n",
        report.shared_table(found),
        *report.task_table(found, everything=everything),
        sep="\n",
        markup=False,
    )
    _show_lacking(lacks)
    values = report.heterogeneity(found, table.x.std(axis=0))
    files = {
        "coefficients.csv": report.frame(found).to_csv(index=False).encode(),
        "heterogeneity.png": report.draw_heterogeneity(values, found, _UNITS.get(name, target)),
    }
    compared = scores.comparison(done) if done else []
    if compared:
        console.print(f"\n{scores.caption(compared, name, shares)}", soft_wrap=True)
        console.print(scores.comparison_table(compared), scores.in_words(compared))
        if compared[0]["of-first"] is not None:  # else there is nothing to be a ratio to
            files["comparison.png"] = scores.draw_comparison(compared)
    make_folder(folder)
    settings = {"task": task, "target": target, "drop": drop or [], "family": name, "soft": soft}
    settings |= {"c": c, "level": level, "missing": missing, "splits": splits, "seed": seed}
    results = {
        "table": str(path),
        "settings": settings | shares._asdict(),
        "rows": rows,
        "shared": [plain(row) for row in report.shared_rows(found)],
        "tasks": report.records(found),
        "lacking": lacks,
        "comparison": compared,
    }
    record_found(results, files, folder, as_json)


def _told(splits: Iterable[dict[str, Any]], tell: Tell) -> list[dict[str, Any]]:
    """Returns the splits, and tells of each when it is done."""
    done = []
    try:
        for split in splits:
            done.append(split)
            tell(len(done), "")
    except DataError as error:
        raise DataError(f"{error}; --splits 0 does without the comparison") from error
    return done


def _check(
    path: Path, task: str, target: str, *, c: float, level: float, missing: str, shares: Any
) -> str:
    """Returns what the table is called elsewhere.

    Raises:
        Refused: An option is out of its range, or the file of another kind.
    """
    kind = path.suffix.lower()
    for ok, must in (
        (kind in _KINDS, f"TABLE must be a .csv or an .npz file, got {path}"),
        (task != target, f"--task and --target must be different columns, got {task!r} for both"),
        (c >= 0, f"--c must be at least 0, got {c:g}"),
        (0 < level < 1, f"--level must be between 0 and 1, got {level:g}"),
        (
            missing in ("error", "indicator"),
            f"--missing must be error or indicator, got {missing!r}",
        ),
        (
            min(shares) > 0 and sum(shares) < 1,
            "--train and --validation must be above 0, and leave rows to be predicted, got "
            f"{shares.train:g} and {shares.validation:g}",
        ),
    ):
        if not ok:
            raise Refused(must)
    return f"{_KINDS[kind]}:{path}"


def _show_lacking(lacks: Mapping[Any, str]) -> None:
    """Says which tasks take coefficients from the others that their own rows do not determine."""
    for label, reason in list(lacks.items())[:_SHOWN]:
        text = f"task {label!r}: {reason}; it takes from the others what these do not determine"
        err.print(text, soft_wrap=True, markup=False)
    if len(lacks) > _SHOWN:
        err.print(f"{len(lacks)} such tasks in all; results.json names them", soft_wrap=True)
