"""Tables of a comparison for others: frames of pandas, CSV, and LaTeX with booktabs."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from engram.compare.comparison_folder import Runs, find_runs
from engram.compare.differences import Difference
from engram.compare.report_rows import (
    CLOCK,
    NEW_CLIENTS,
    client_scores,
    headings,
    models_of,
    shown_rounds,
    told_round,
)
from engram.compare.results import Results, metrics_of, results_of
from engram.compare.text_tables import elsewhere_in_words
from engram.core.checks import must
from engram.scoring.score_columns import COMMON, ELSEWHERE
from engram.settings.errors import Refused

WIDTHS: Final = {"one": 54, "two": 112}
"""Letters of a small font that one column of a paper has room for, and both together."""

_COSTS: Final = {
    "client-bytes": ("KiB", 1 / 1024),
    "client-gradients": ("gradients", 1.0),
    CLOCK: ("seconds", 1.0),
}
_BETWEEN: Final = 2  # letters between two columns of a table
_SPECIAL: Final = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
    | {"±": r"$\pm$", "†": r"$^\dagger$"}
)


def summary(found: Sequence[Results]) -> pd.DataFrame:
    """Returns a row for each model and reference, and columns for each metric.

    All are of the round that validation rows pick, or of the last: see ``report_rows.report_rows``.
    ``accuracy`` is the mean over clients, ``accuracy-std`` the standard deviation over clients,
    ``accuracy-variance`` its square and ``accuracy-jain`` Jain's index of fairness,
    ``accuracy-p10`` and ``accuracy-worst`` the 10th percentile and the client that is worst off,
    and ``accuracy-seed-std`` the standard deviation of the mean over seeds. ``accuracy-common`` is
    the mean of the global model, and ``accuracy-elsewhere`` that on other clients' test rows, with
    its interval. Costs are ``client-bytes`` and ``client-gradients`` in a round, and
    ``simulated-seconds`` up to the round. Columns without a figure are left out. Clients that never
    train have rows of their own. ``note`` says why a reference is left out, or what it is of.
    ``attrs["answer"]`` is the comparison's answer in a sentence.
    """
    columns: dict[Any, dict[Any, Any]] = {"seeds": {}}
    for results in found:
        name, keys = results.metric.name, [*headings(results.metric).values(), "-seed-std", COMMON]
        keys += [ELSEWHERE + end for end in ("", "-low", "-high")]
        rows = {row["method"]: row for row in results.rows}
        columns["seeds"] |= {label: row["runs"] for label, row in rows.items()}
        for key in (*(name + end for end in keys), *_COSTS):
            each = (rows | dict(results.beside)).items()
            columns[key] = {label: row.get(key) for label, row in each}
    frame = pd.DataFrame(columns)
    frame.index.name = "method"
    frame = frame.astype(float).astype({"seeds": "Int64"}).dropna(axis="columns", how="all")
    if found[0].notes:
        frame["note"] = [found[0].notes.get(name, "") for name in frame.index]
    frame.attrs["answer"] = found[0].answer
    return frame


def per_client(runs: Runs, results: Results) -> pd.DataFrame:
    """Returns clients by methods: a row for each client of each seed, and a column for each model.

    Scores are of test rows, each run in the round that is shown. The column ``unseen`` says which
    clients never train; a client that was not scored has NaN.
    """
    first = next(iter(runs.values()))
    index = pd.MultiIndex.from_tuples(
        [
            (record.settings["seed"], record.names.get(client, client))
            for record in first
            for client in range(record.clients)
        ],
        names=["seed", "client"],
    )
    unseen = [np.isin(np.arange(r.clients), (r.results or {}).get("unseen", ())) for r in first]
    columns = {"unseen": np.concatenate(unseen)}
    for method, label, which in models_of(runs):
        records = runs[method]
        if len(records) == len(first) and all(record.results for record in records):
            columns[label] = np.concatenate(
                client_scores(records, results.metric.name, which, unseen=True)
            )
    for reference, known in results.references.items():
        columns[reference] = np.concatenate(known)
    return pd.DataFrame(columns, index=index)


def pairs(results: Results) -> pd.DataFrame:
    """Returns a row for each pair of models: the mean difference, and its interval."""
    found = results.claims.pairs if results.claims else {}
    names = list(dict.fromkeys(name for pair in found for name in pair))
    rows = [(*pair, *found[pair], found[pair].shown) for pair in combinations(names, 2)]
    heading = ["one", "other", *Difference._fields, "shown"]
    return pd.DataFrame(rows, columns=heading).rename(columns={"mean": "difference"})


def table_for_paper(folder: Path, width: str, which: str, *, as_csv: bool) -> str:
    """Returns the table of a run or a comparison for LaTeX, as ``latex`` does, or as CSV.

    Raises:
        Refused: There is no table of it, or as ``shown_rounds`` and ``latex`` say.
    """
    runs = shown_rounds(find_runs(folder), which)
    if not runs:
        raise Refused(f"{folder} has no table yet: no run of it has been evaluated")
    if not all(record.trains_network for record in next(iter(runs.values()))):
        raise Refused(f"{folder} is of a method without a network: --json has what it found")
    found = results_of(folder, runs, metrics_of(runs))
    return str(summary(found).to_csv()) if as_csv else latex(found, width)


class _Column(NamedTuple):
    results: Results | None  # None of costs
    head: str
    figure: str
    spread: str = ""
    scale: float = 0.0  # of a figure in another unit than the metric's

    def bold(self, label: str) -> bool:
        claims = self.results.claims if self.results and self.spread else None
        return claims is not None and label == claims.best

    def cell(self, label: str, row: "Mapping[Any, Any]") -> str:
        """Returns a row's cell, as it is read."""
        value = float(row.get(self.figure, np.nan))
        if not np.isfinite(value):
            return "-"
        if self.results is None or self.scale:
            value *= self.scale
            return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
        if self.figure.endswith(ELSEWHERE):
            return elsewhere_in_words(row, self.results.metric)
        claims = self.results.claims if self.spread else None
        apart = claims.pairs.get((claims.best, label)) if claims else None
        alike = apart is not None and not apart.shown and apart.low > -np.inf
        metric, spread = self.results.metric, float(row.get(self.spread, np.nan))
        if metric.percent or not spread > 0:
            texts = [metric.in_words(each, 1) for each in (value, spread) if np.isfinite(each)]
        else:  # places of the spread's second digit
            places = max(0, 1 - math.floor(math.log10(spread)))
            texts = [f"{each:.{places}f}" for each in (value, spread)]
        return " ± ".join(texts) + "†" * alike


def latex(found: Sequence[Results], width: str) -> str:
    """Returns a table for a paper, to be used with the package booktabs.

    One column of a paper has the mean of each metric, with its standard deviation over seeds; two
    have also the spread over clients, and the clients that are worst off; and fairness, scores
    elsewhere and costs, where there is room for them.

    Raises:
        Refused: There is no such width, or the table does not fit it.
    """
    if width not in WIDTHS:
        raise Refused(must("width", width, "one or two, the columns of a paper"))
    frame = summary(found)
    rows = [(str(label), row) for label, row in frame.iterrows()]
    columns = _columns(found, frame, wide=width == "two")
    left = _fit(columns, rows, width)
    cells = {label: [c.cell(label, row) for c in columns] for label, row in rows}
    lines = [
        _line([label.removesuffix(NEW_CLIENTS), *texts], [c.bold(label) for c in columns])
        for label, texts in cells.items()
    ]
    trained, new = len(found[0].rows), sum(label.endswith(NEW_CLIENTS) for label in cells)
    head = [rf"\multicolumn{{{len(columns) + 1}}}{{l}}{{\emph{{new clients}}}} \\"]
    lines[trained + new : trained + new] = [r"\midrule"] * (trained + new < len(lines))
    lines[trained:trained] = [r"\midrule", *head] * bool(new)
    star = "*" * (width == "two")
    whole = [
        rf"\begin{{table{star}}}",
        r"  \setlength{\belowcaptionskip}{4pt}",
        rf"  \caption{{{_escaped(_caption(found, columns))}}}",
        r"  \centering\small\setlength{\tabcolsep}{3pt}",
        rf"  \begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"    \toprule",
        *(f"    {line}" for line in [*_headings(found, columns), *lines]),
        r"    \bottomrule",
        r"  \end{tabular}",
        rf"\end{{table{star}}}",
    ]
    comment = [f"% There is no room for {', '.join(left)}: CSV has them."] * bool(left)
    return "\n".join([*comment, *whole, ""])


def _columns(found: Sequence[Results], frame: pd.DataFrame, *, wide: bool) -> list[_Column]:
    columns = []
    for results in found:
        name, metric = results.metric.name, results.metric
        title = "mean" if wide else name + metric.unit
        columns.append(_Column(results, title, name, f"{name}-seed-std"))
        if not wide:
            continue
        for head, end in headings(metric).items():
            if end:
                scale = {"-variance": metric.scale**2, "-jain": 1.0}.get(end, 0.0)
                columns.append(_Column(results, head, name + end, scale=scale))
        columns.append(_Column(results, "elsewhere", name + ELSEWHERE))
    for key, (head, scale) in _COSTS.items() if wide else ():
        columns.append(_Column(None, head, key, scale=scale))
    return [column for column in columns if column.figure in frame]


def _headings(found: Sequence[Results], columns: Sequence[_Column]) -> list[str]:
    heads = _line(["method", *(column.head for column in columns)])
    if len(columns) == len(found):
        return [heads, r"\midrule"]
    above, rules, start = [], [], 2
    for results in (*found, None):
        wide = sum(column.results is results for column in columns)
        if not wide:
            continue
        title = _escaped(results.metric.name + results.metric.unit) if results else "cost"
        above.append(rf"\multicolumn{{{wide}}}{{c}}{{{title}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + wide - 1}}}")
        start += wide
    return [rf"& {' & '.join(above)} \\", " ".join(rules), heads, r"\midrule"]


def _caption(found: Sequence[Results], columns: Sequence[_Column]) -> str:
    first = found[0].rows[0]
    metrics = " and ".join(results.metric.name for results in found).capitalize()
    seeds = f" and {first['runs']} seeds ± standard deviation over seeds" * (first["runs"] > 1)
    rounds = told_round(first)
    best = " Bold: best validation score; †: not significantly different from it."
    told = best * any(results.claims for results in found)
    main = found[0].metric.name
    left = [name for name, figures in found[0].beside.items() if np.isnan(figures[main])]
    left = [name for name in left if name in found[0].notes]
    told += "".join(f" {name.capitalize()}: {found[0].notes[name]}." for name in left)
    clock = "; seconds: simulated, of all rounds up to it" * any(c.figure == CLOCK for c in columns)
    told += f" Cost: of a client in a round{clock}." * (columns[-1].results is None)
    # Clients that train with no seed are scored, too, but have no part in a mean.
    clients = first.get(f"{main}-clients", first["scored"])
    return f"{metrics} on test rows, mean over {clients} clients{seeds}, {rounds}.{told}"


def _fit(columns: list[_Column], rows: Sequence[tuple[str, Any]], width: str) -> list[str]:
    """Removes columns without room, costs first, then fairness; returns their headings."""

    def letters() -> int:
        table = [["method", *(c.head for c in columns)]]
        table += [
            [label.removesuffix(NEW_CLIENTS), *(c.cell(label, row) for c in columns)]
            for label, row in rows
        ]
        longest = [max(map(len, column)) for column in zip(*table, strict=True)]
        return sum(longest) + _BETWEEN * (len(longest) - 1)

    more, left = [c for c in columns if c.figure.endswith(ELSEWHERE)], list[str]()
    more += sorted((c for c in columns if c.scale), key=lambda c: c.results is None)
    while more and letters() > WIDTHS[width]:
        columns.remove(last := more.pop())
        left.insert(0, f"{last.results.metric.name if last.results else 'cost'} {last.head}")
    if (found := letters()) > WIDTHS[width]:
        instead = "take width two" if found <= WIDTHS["two"] else "take fewer metrics"
        had = f"{found} letters, and {width} column{'s' * (width == 'two')} of a paper "
        raise Refused(f"the table does not fit: it has {had}{WIDTHS[width]}: {instead}")
    return left


def _line(texts: Sequence[str], bold: Sequence[bool] = ()) -> str:
    first, *figures = map(_escaped, texts)
    marked = zip(figures, bold or [False] * len(figures), strict=True)
    return " & ".join([first, *(rf"\textbf{{{t}}}" if b else t for t, b in marked)]) + r" \\"


def _escaped(text: str) -> str:
    return text.translate(_SPECIAL)
