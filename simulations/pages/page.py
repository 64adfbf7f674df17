"""The page of a run or a comparison: table, words, figures, settings, and how to repeat it."""

import base64
from pathlib import Path
from typing import Final

from jinja2 import Environment
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from federation.errors import Refused
from server.record import RunRecord
from simulations.comparison import Runs, find_runs, trains_network
from simulations.pages.content import BAR, PageTable, figures_of, table_of
from simulations.pages.repeat import repeating, settings_of
from simulations.plots import png
from simulations.reports import plots_of

__all__ = ["page"]

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
    ``engram show`` draws.

    Raises:
        Refused: If the folder is neither, or nothing has been evaluated yet.
    """
    runs = find_runs(folder)
    figures: dict[str, Markup] = {}
    pictures: dict[str, str] = {}
    alone = RunRecord.open(folder) if (folder / "config.json").is_file() else None
    if alone is not None and not trains_network(alone):
        first, tables, pictures = alone, [_results(alone)], _pictures(alone)
    elif runs:
        first = next(iter(runs.values()))[0]
        tables, figures = _of_networks(folder, runs)
    else:
        raise Refused(f"{folder} has nothing to report yet: no run of it has been evaluated")
    config = first.config
    versions = ", ".join(f"{name} {version}" for name, version in config["versions"].items())
    environment = Environment(autoescape=True)
    return environment.from_string(_PAGE).render(
        title=folder.name,
        plotly=Markup(get_plotlyjs()),
        tables=tables,
        figures=figures,
        pictures=pictures,
        command=repeating(folder, config["settings"]),
        settings=settings_of(folder, config["settings"]),
        source=f"Source {config['sources'][-1]}; {versions}",
    )


def _results(record: RunRecord) -> PageTable:
    """Returns a table of a run's results that are numbers or words.

    Raises:
        Refused: If it is not finished.
    """
    if record.results is None:
        raise Refused(f"{record.folder} is not finished: resume it first")
    told = {k: v for k, v in record.results.items() if isinstance(v, int | float | str)}
    return PageTable("Results", ["", ""], list(told.items()))


def _pictures(record: RunRecord) -> dict[str, str]:
    """Returns a run's plots, drawn from its record: a file beside it may be anybody's."""
    found = plots_of(record)
    return {name: base64.b64encode(png(figure)).decode() for name, figure in found.items()}


def _of_networks(folder: Path, runs: Runs) -> tuple[list[PageTable], dict[str, Markup]]:
    *chosen, _ = next(iter(runs.values()))[0].metrics  # the last is the loss
    figures = {
        name: Markup(figure.to_html(full_html=False, include_plotlyjs=False, config=BAR))
        for metric in chosen
        for name, figure in figures_of(runs, metric).items()
    }
    return [table_of(folder, runs, metric) for metric in chosen], figures
