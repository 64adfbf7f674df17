"""Tables of a report as texts: the same on a terminal, on a page and on the board."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Self

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from engram.cli.console import new_table
from engram.compare.differences import SHARE_SEEDS
from engram.compare.report_rows import NEW_CLIENTS, WORSE, headings, told_round
from engram.link.console import WHOLE
from engram.scoring.evaluation import center_key
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import COMMON, ELSEWHERE

_COSTS: Final = {
    "KiB": "received and sent by a client in a round",
    "ms": "milliseconds of a round",
    "client ms": "milliseconds that a client trains in a round",
}


class TextTable(NamedTuple):
    """A table with explanations below it.

    Attributes:
        title: Its title; "" for none.
        heading: The columns' headings.
        rows: The cells.
        legend: Meanings of columns, by heading.
        notes: Further lines.
    """

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[object]]
    legend: Mapping[str, str] = MappingProxyType({})
    notes: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        """The lines below the table: a line for each column, then the notes."""
        return [*(f"{column}: {meaning}" for column, meaning in self.legend.items()), *self.notes]

    def fitted(self, width: int) -> tuple[Self, Table]:
        """Returns the table as printed, without its costs if it is wider than ``width``."""
        drawn = new_table([], [], title=self.title)
        drawn.pad_edge = False
        for heading in self.heading:
            side: Literal["left", "right"] = "right" if drawn.columns else "left"
            drawn.add_column(heading, justify=side, no_wrap=True)
        for row in self.rows:
            drawn.add_row(*map(str, row))
        console = Console(width=WHOLE)
        wide = Measurement.get(console, console.options, drawn).maximum
        kept = [k for k, name in enumerate(self.heading) if name not in _COSTS]
        if wide <= width or len(kept) == len(self.heading):
            return self, drawn
        left = ", ".join(name for name in self.heading if name in _COSTS)
        smaller = self._replace(
            heading=[self.heading[k] for k in kept],
            rows=[[row[k] for k in kept] for row in self.rows],
            legend={name: words for name, words in self.legend.items() if name not in _COSTS},
            notes=[*self.notes, f"{left}: no room here; results.json has them"],
        )
        return smaller.fitted(width)


def method_table(
    rows: Sequence[Mapping[str, Any]],
    metric: Metric,
    beside: Mapping[str, Mapping[str, float]],
    notes: Mapping[str, str] = MappingProxyType({}),
) -> TextTable:
    """Returns the table of a metric: a row for each model and each baseline."""
    name, middle = metric.name, center_key(metric.name + COMMON, metric)
    further = {
        heading: end
        for heading, end in headings(metric).items()
        if heading not in ("mean", "s.d.", "variance", "jain")
    }
    meaning = {
        "median": "median of the clients",
        **{f"p{share}": f"{share}th percentile of the clients" for share in (10, 90)},
        "worst": "the client that is worst off",
    }
    few = any(row.get(f"{name}{WORSE}-low", 0) is None for row in rows)
    interval = (
        f"the interval needs {SHARE_SEEDS} seeds"
        if few
        else ("with a 95 % interval, corrected for clients repeating over seeds")
    )
    columns = {  # the key that says whether there is such a column, and its meaning
        "worse": (name + WORSE, f"% of clients served worse than by local training; {interval}"),
        "noise": (f"{name}-noise", "standard deviation of the noise in a mean"),
        "mean ± sd": ("method", "mean and standard deviation over clients"),
        **{heading: (name + end, meaning[heading]) for heading, end in further.items()},
        "elsewhere": (f"{name}{ELSEWHERE}", "mean on other clients' test rows, 95 % interval"),
        "global": (middle, f"{metric.center} of the global model, not fine-tuned"),
        "seeds": (f"{name}-seed-std", "standard deviation of the mean over seeds"),
        "KiB": ("client-bytes", _COSTS["KiB"]),
        "ms": ("ms-per-round", _COSTS["ms"]),
        "client ms": ("client-ms", _COSTS["client ms"]),
    }
    shown = {
        heading: each
        for heading, each in columns.items()
        if any(row.get(each[0]) is not None for row in (*rows, *beside.values()))
    }

    def cell(heading: str, row: Mapping[str, Any]) -> str:
        value = row.get(shown[heading][0])
        if heading == "worse":
            return share_in_words(row, name)
        if heading == "elsewhere":
            return elsewhere_in_words(row, metric)
        if heading == "mean ± sd":
            both = [metric.in_words(row.get(key), 1) for key in (name, f"{name}-std")]
            return both[0] if "-" in both else " ± ".join(both)
        if heading in _COSTS:
            size = None if value is None else value / 1024 if heading == "KiB" else value
            return "-" if size is None else f"{size:.{int(heading != 'KiB')}f}"
        return metric.in_words(value, 1)

    every = [row if row["finished"] else {**row, "method": f"{row['method']}..."} for row in rows]
    every += [{"method": reference, **figures} for reference, figures in beside.items()]
    cells = [[row["method"], *(cell(heading, row) for heading in shown)] for row in every]
    title = f"{name.capitalize()}{' in %' * metric.percent} on test rows {told_round(rows[0])}"
    legend = {heading: words for heading, (_, words) in shown.items()}
    best = ["best round: that with the best mean on validation rows, for each model"]
    said = best * (rows[0]["selected-round"] is not None)
    new = "clients that never train; the other rows are without them"
    said += [f"...{NEW_CLIENTS}: {new}"] * any(label.endswith(NEW_CLIENTS) for label in beside)
    said += [f"{reference}: {words}" for reference, words in notes.items()]
    return TextTable(title, ["method", *shown], cells, legend, said)


def results_table(found: Mapping[str, Any]) -> TextTable:
    """Returns a table of a run's results that are numbers or words."""
    numbers = {key: value for key, value in found.items() if isinstance(value, int | float | str)}
    return TextTable("Results", ("", ""), list(numbers.items()))


def share_in_words(row: Mapping[str, Any], name: str) -> str:
    """Returns the share of clients that a row serves worse than their own training, in percent."""
    key = name + WORSE
    if row.get(key) is None:
        return "-"
    ends = ("",) if row[f"{key}-low"] is None else ("", "-low", "-high")
    share, *interval = (f"{100 * row[key + end]:.0f}" for end in ends)
    return f"{share} ({'-'.join(interval)})" if interval else share


def elsewhere_in_words(row: Mapping[str, Any], metric: Metric) -> str:
    """Returns the mean on other clients' test rows, with its interval if there is one."""
    key = f"{metric.name}{ELSEWHERE}"
    mean, *ends = (metric.in_words(row.get(f"{key}{end}"), 1) for end in ("", "-low", "-high"))
    return mean if "-" in ends else f"{mean} ({'-'.join(ends)})"
