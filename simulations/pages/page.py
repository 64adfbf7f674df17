"""The page of a run or a comparison: table, words, figures, settings, and how to repeat it."""

import base64
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from engram.metrics import Metric
from federation.errors import Refused
from federation.experiment import default_config
from federation.methods import METHODS
from federation.methods.local import COMMON, LocalMethod
from server.record import RunRecord
from simulations.comparison import PLAN, Runs, find_runs, read_plan
from simulations.differences import in_words
from simulations.pages.figures import clients, curves, gains
from simulations.references import read_references
from simulations.rows import differences_from, others, report_rows, tail

__all__ = ["page"]

_BAR: Final = {"displaylogo": False}
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: 0.2rem 0.8rem; text-align: right; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; }
pre { background: #f4f4f4; padding: 0.8rem; overflow-x: auto; }
img { max-width: 100%; }
</style>
{% if figures %}<script>{{ plotly }}</script>{% endif %}
</head>
<body>
<h1>{{ title }}</h1>
{% for table in tables %}
<h2>{{ table.title }}</h2>
<table>
<tr>{% for cell in table.heading %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% for line in table.words %}<p>{{ line }}</p>{% endfor %}
{% endfor %}
{% for name, figure in figures.items() %}<h2>{{ name }}</h2>{{ figure }}{% endfor %}
{% for name, picture in pictures.items() %}<h2>{{ name }}</h2>
<img alt="{{ name }}" src="data:image/png;base64,{{ picture }}">{% endfor %}
<h2>Repeat it</h2>
<pre>{{ command }}</pre>
<h2>Settings</h2>
<table>
<tr><th>setting</th><th>value</th><th>default</th></tr>
{% for row in settings %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
<p>{{ source }}</p>
</body>
</html>
"""


def page(folder: Path) -> str:
    """Returns the page of a run or a comparison, with all that it needs.

    Runs of methods that train networks have interactive figures; others have the pictures that
    ``engram show`` has drawn.

    Raises:
        Refused: If the folder is neither, or nothing has been evaluated yet.
    """
    runs = find_runs(folder)
    figures: dict[str, Markup] = {}
    pictures: dict[str, str] = {}
    alone = RunRecord.open(folder) if (folder / "config.json").is_file() else None
    if alone is not None and not issubclass(_method(alone), LocalMethod):
        first, tables, pictures = alone, [_results(alone)], _pictures(folder)
    elif runs:
        first = next(iter(runs.values()))[0]
        tables, figures = _of_networks(folder, runs)
    else:
        raise Refused(f"{folder} has nothing to report yet: no run of it has been evaluated")
    config = first.config
    settings, defaults = _settings(folder, config["settings"]), default_config()
    shown = [(key, _text(value), _text(defaults.get(key, ""))) for key, value in settings.items()]
    versions = ", ".join(f"{name} {version}" for name, version in config["versions"].items())
    environment = Environment(autoescape=True)
    return environment.from_string(_PAGE).render(
        title=folder.name,
        plotly=Markup(get_plotlyjs()),
        tables=tables,
        figures=figures,
        pictures=pictures,
        command=_command(folder, config["settings"], defaults),
        settings=sorted(shown, key=lambda row: row[1] == row[2]),  # first what differs
        source=f"Source {config['sources'][-1]}; {versions}",
    )


def _method(record: RunRecord) -> type[Any]:
    return METHODS[record.config["settings"]["method"]]


def _results(record: RunRecord) -> dict[str, Any]:
    """Returns a table of a run's results that are numbers or words.

    Raises:
        Refused: If it is not finished.
    """
    if record.results is None:
        raise Refused(f"{record.folder} is not finished: resume it first")
    told = {k: v for k, v in record.results.items() if isinstance(v, int | float | str)}
    return {"title": "Results", "heading": ["", ""], "rows": list(told.items()), "words": []}


def _pictures(folder: Path) -> dict[str, str]:
    paths = sorted(folder.glob("*.png"))
    return {path.stem: base64.b64encode(path.read_bytes()).decode() for path in paths}


def _of_networks(folder: Path, runs: Runs) -> tuple[list[dict[str, Any]], dict[str, Markup]]:
    rows = report_rows(runs)
    records = next(iter(runs.values()))
    *chosen, _ = records[0].metrics  # the last is the loss
    tables, figures = [], {}
    for metric in chosen:
        known = read_references(folder, records, metric.name)
        told = differences_from(runs, rows, metric, known)
        tables.append(
            _table(rows, metric, others(runs, metric, known))
            | {"words": in_words(*told, metric) if told else []}
        )
        named = {f"{metric.name} against rounds": curves(runs, metric)}
        for reference, figure in gains(runs, metric).items():
            named[f"What each client gains over {reference}"] = figure
        if (dots := clients(runs, metric)) is not None:
            named[f"{metric.name} of each client"] = dots
        for name, figure in named.items():
            figures[name] = Markup(
                figure.to_html(full_html=False, include_plotlyjs=False, config=_BAR)
            )
    return tables, figures


def _table(
    rows: list[dict[str, Any]], metric: Metric, beside: Mapping[str, tuple[float, ...]]
) -> dict[str, Any]:
    name, percent = metric.name, " in %" if metric.percent else ""
    keys = {"mean": "", "s.d.": "-std", tail(metric)[1:]: tail(metric), "worst": "-worst"}
    told = []
    for row in rows:
        own = name + row["model"]
        figures = [*(row.get(own + key) for key in keys.values()), row.get(name + COMMON)]
        told.append([row["method"], *(metric.in_words(figure, 1) for figure in figures)])
    for reference, known in beside.items():
        figures = [*known, None]
        told.append([reference, *(metric.in_words(figure, 1) for figure in figures)])
    title = f"{name.capitalize()}{percent} of the clients, on test rows"
    return {"title": title, "heading": ["method", *keys, "common model"], "rows": told}


def _settings(folder: Path, own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's settings; for a comparison, those of all its methods."""
    if not (folder / PLAN).is_file():
        return dict(own)
    found: dict[str, dict[str, None]] = {}
    for run in read_plan(folder)["runs"].values():
        for key, value in run.items():
            found.setdefault(key, {})[_text(value)] = None
    return {key: ", ".join(values) for key, values in found.items()}


def _command(folder: Path, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Returns the command that repeats the run, or the comparison of its methods."""
    if not (folder / PLAN).is_file():
        return " ".join(["engram run", settings["method"], *_sets(settings, defaults)])
    plan = read_plan(folder)["runs"]
    methods = dict.fromkeys(own["method"] for own in plan.values())
    seeds = {own["seed"] for own in plan.values()}
    given = dict.fromkeys(
        word
        for own in plan.values()
        for word in _sets(_named_apart(own | {"seed": min(seeds)}, plan), defaults)
    )
    return " ".join(["engram compare", *methods, f"--seeds {len(seeds)}", *given])


def _named_apart(own: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's settings: what other methods of its comparison have otherwise, as its own."""
    method = own["method"]
    others = [run for run in plan.values() if run["method"] != method]
    return {
        key
        if key == "seed" or all(run.get(key, value) == value for run in others)
        else f"{method}.{key}": value
        for key, value in own.items()
    }


def _sets(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Returns the options that give what differs from the defaults."""
    passed = {"method", "resume", "out"}
    return [
        f"--set {shlex.quote(f'{key}={_text(value)}')}"
        for key, value in settings.items()
        if key.rpartition(".")[2] not in passed and value != defaults.get(key)
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
