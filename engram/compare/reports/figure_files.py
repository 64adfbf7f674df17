"""Figures of a run or a comparison as files: for a screen, or for the columns of a paper."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from matplotlib import style
from matplotlib.figure import Figure

from engram.compare.comparison_folder import Runs, find_runs
from engram.compare.figures import save
from engram.compare.plots import draw_clients, draw_metric
from engram.compare.report_rows import CLOCK, comparable
from engram.compare.reports.base import plots_of
from engram.compare.reports.gain_plot import draw_gains
from engram.compare.results import metrics_of, references_of
from engram.core.checks import must
from engram.runs.run import Run, is_run
from engram.settings.errors import Refused

FORMATS: Final = ("pdf", "png", "svg")
_INCHES: Final = {"one": 3.5, "two": 7.16}
"""Widths of one column, and of both, in the journals of the IEEE; others differ by little."""

_LOWEST: Final = 0.6  # of a figure's height, whose rows need room for their names

_PRINTED: Final[Mapping[Any, Any]] = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "figure.titlesize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7),
    **dict.fromkeys(("axes.linewidth", "grid.linewidth"), 0.6),
    # Text stays text, which editors of journals ask for, and files are the same every time.
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "engram",
}


class Sheet(NamedTuple):
    """The paper that figures are for.

    Attributes:
        format: One of ``FORMATS``.
        width: ``one`` or ``two`` columns of a paper; "" for a screen.
        style: A style of matplotlib's: its name or its file; "" for none.
    """

    format: str = "png"
    width: str = ""
    style: str = ""


def sheet_of(file_format: str | None, width: str | None, look: str | None) -> Sheet:
    """Checks the options of figures.

    Raises:
        Refused: A format, a width or a style is not known.
    """
    sheet = Sheet(file_format or "png", width or "", look or "")
    if sheet.format not in FORMATS:
        raise Refused(must("--format", sheet.format, f"one of {', '.join(FORMATS)}"))
    if sheet.width not in ("", *_INCHES):
        raise Refused(must("--width", sheet.width, "one or two, the columns of a paper"))
    with _styled(sheet):
        return sheet


@contextmanager
def _styled(sheet: Sheet) -> Iterator[None]:
    styles: list[Any] = [dict(_PRINTED)] if sheet.width else []
    try:
        with style.context([*styles, *([sheet.style] if sheet.style else [])]):
            yield
    except OSError as error:
        if not sheet.style or sheet.style not in str(error):
            raise
        raise Refused(
            must("--style", sheet.style, "a file of matplotlib's style, or the name of one")
        ) from error


def draw_files(
    folder: Path, sheet: Sheet, draw: Callable[..., Mapping[str, Figure]] | None = None
) -> list[str]:
    """Draws a run or a comparison into its folder; returns the names of the files.

    ``draw(folder, narrow=...)`` returns the figures by name; by default it is ``figures_of``.

    Raises:
        Refused: There is nothing to draw yet.
    """
    with _styled(sheet):
        figures = (draw or figures_of)(folder, narrow=sheet.width == "one")
        if not figures:
            raise Refused(f"{folder} has nothing to draw yet: no run of it has been evaluated")
        for name, figure in figures.items():
            if sheet.width:
                _fit(figure, _INCHES[sheet.width])
            save(figure, folder / f"{name}.{sheet.format}")
    return [f"{name}.{sheet.format}" for name in figures]


def _fit(figure: Figure, inches: float) -> None:
    wide, high = figure.get_size_inches()
    figure.set_size_inches(inches, high * max(inches / wide, _LOWEST))


def figures_of(folder: Path, *, narrow: bool = False) -> dict[str, Figure]:
    """Returns the figures of a run or a comparison, by name."""
    if is_run(folder):
        record = Run.open(folder)
        if not record.trains_network:
            return dict(plots_of(record))
    runs = find_runs(folder)
    return network_figures(folder, runs, narrow=narrow) if runs else {}


def network_figures(folder: Path, runs: Runs, *, narrow: bool = False) -> dict[str, Figure]:
    """Returns the figures of runs that train networks: gains, curves and clients by each metric.

    Those of the first metric are called as if it were the only one. Where all runs have a clock,
    there are curves over its seconds, too.
    """
    found: dict[str, Figure] = {}
    known = references_of(folder, runs)
    ended = any(record.results for records in runs.values() for record in records)
    for number, metric in enumerate(metrics_of(runs)):
        end = f"-{metric.name}" * (number > 0)
        if figure := draw_gains(comparable(runs), metric, known[metric.name], narrow=narrow):
            found[f"gains{end}"] = figure
        found[metric.name] = draw_metric(runs, metric, narrow=narrow)
        each = [record for records in runs.values() for record in records]
        if all(any(CLOCK in row for row in record.rows()) for record in each):
            found[f"{metric.name}-time"] = draw_metric(runs, metric, narrow=narrow, against=CLOCK)
        if ended:
            found[f"clients{end}"] = draw_clients(runs, metric, narrow=narrow)
    return found
