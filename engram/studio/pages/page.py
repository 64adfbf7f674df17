"""The page of a run or a comparison: answer, gains, tables, figures, settings, how to repeat it."""

import base64
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment
from markupsafe import Markup
from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

from engram.compare.comparison_folder import Runs, find_runs
from engram.compare.figures import image_of
from engram.compare.reports.base import plots_of
from engram.compare.reports.local import tables_of
from engram.compare.results import metrics_of, results_of
from engram.compare.text_tables import TextTable, results_table
from engram.runs.run import Run, is_run
from engram.settings.errors import Refused
from engram.studio.pages.figures import BAR, titled_figures, titled_gains
from engram.studio.pages.reproduce_command import repeating, settings_of

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: 0.2rem 0.8rem; text-align: right; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; }
pre { background: #f4f4f4; padding: 0.8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
img { max-width: 100%; }
.answer { font-size: 1.15rem; border-left: 0.3rem solid #3f90da; padding-left: 0.8rem; }
.wide { overflow-x: auto; }
.tabs > input { position: absolute; opacity: 0; }
.tabs > label { display: inline-block; padding: 0.4rem 1rem; border: 1px solid #ccc;
  border-radius: 0.3rem; cursor: pointer; }
.tabs > input:checked + label { background: #3f90da; border-color: #3f90da; color: white; }
.tabs > input:focus-visible + label { outline: 2px solid black; }
.tabs > section { display: none; }
{% for part in parts %}
#metric-{{ loop.index }}:checked ~ #part-{{ loop.index }}{{ "," if not loop.last }}
{% endfor %}{% if parts %}{ display: block; }{% endif %}
</style>
{% if parts %}<script>{{ plotly }}</script>{% endif %}
</head>
<body>
<h1>{{ title }}</h1>
{% if answer %}<p class="answer">{{ answer }}</p>{% endif %}
<div class="tabs">
{% for part in parts %}
<input type="radio" name="metric" id="metric-{{ loop.index }}" {{ "checked" if loop.first }}
  onchange="window.dispatchEvent(new Event('resize'))">
{% if parts|length > 1 %}<label for="metric-{{ loop.index }}">{{ part.name }}</label>{% endif %}
{% endfor %}
{% for part in parts %}
<section id="part-{{ loop.index }}">
{% for name, figure in part.gains.items() %}<h2>{{ name }}</h2>{{ figure }}{% endfor %}
{% for table in part.tables %}{{ shown(table) }}{% endfor %}
{% for name, figure in part.figures.items() %}<h2>{{ name }}</h2>{{ figure }}{% endfor %}
</section>
{% endfor %}
</div>
{% for table in tables %}{{ shown(table) }}{% endfor %}
{% for name, picture in pictures.items() %}<h2>{{ name }}</h2>
<img alt="{{ name }}" src="data:image/png;base64,{{ picture }}">{% endfor %}
{{ shown(changed) }}
<details><summary>All other settings, which have their defaults</summary>
{{ shown(defaults) }}</details>
<h2>Repeat it</h2>
<pre>{{ command }}</pre>
<p>{{ source }}</p>
</body>
</html>
"""

_TABLE: Final = """{% if table.title %}<h2>{{ table.title }}</h2>{% endif %}
<div class="wide"><table>
<tr>{% for cell in table.heading %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% for line in table.words %}<p>{{ line }}</p>{% endfor %}
"""


class _Part(NamedTuple):
    name: str
    gains: dict[str, Markup]
    tables: list[TextTable]
    figures: dict[str, Markup]


def page(folder: Path) -> str:
    """Returns the page of a run or a comparison, with all that it needs.

    Runs of methods that train networks have interactive figures; others have the pictures that
    ``engram show`` draws.

    Raises:
        Refused: If the folder is neither, or nothing has been evaluated yet.
    """
    runs = find_runs(folder)
    found: dict[str, Any] = {"parts": [], "tables": [], "pictures": {}, "answer": ""}
    alone = Run.open(folder) if is_run(folder) else None
    if alone is not None and not alone.trains_network:
        first = alone
        # Drawn from its record: a picture beside it may be anybody's.
        drawn = {name: image_of(figure) for name, figure in plots_of(alone).items()}
        found["pictures"] = {name: base64.b64encode(data).decode() for name, data in drawn.items()}
        found["tables"] = [results_table(alone.finished)]
    elif runs:
        first = next(iter(runs.values()))[0]
        found |= _of_networks(folder, runs)
    else:
        raise Refused(f"{folder} has nothing to report yet: no run of it has been evaluated")
    config = first.config
    versions = ", ".join(f"{name} {version}" for name, version in config["versions"].items())
    settings = settings_of(folder, config["settings"])
    changed = [row for row in settings if row[1] != row[2]]
    defaults = [(key, value) for key, value, default in settings if value == default]
    environment = Environment(autoescape=True)
    table = environment.from_string(_TABLE)
    return environment.from_string(_PAGE).render(
        title=folder.name,
        plotly=Markup(get_plotlyjs()),
        shown=lambda each: Markup(table.render(table=each)),
        command=repeating(folder, config),
        changed=TextTable("Settings", ("setting", "value", "default"), changed),
        defaults=TextTable("", ("setting", "value"), defaults),
        source=f"Source {config['sources'][-1]}; {versions}",
        **found,
    )


def _of_networks(folder: Path, runs: Runs) -> dict[str, Any]:
    found = results_of(folder, runs, metrics_of(runs))
    parts = [
        _Part(
            results.metric.name,
            _drawn(titled_gains(runs, results)),
            tables_of(results),
            _drawn(titled_figures(runs, results.metric)),
        )
        for results in found
    ]
    return {"parts": parts, "answer": found[0].answer}


def _drawn(figures: dict[str, Figure]) -> dict[str, Markup]:
    found = {}
    for name, figure in figures.items():
        figure.update_layout(template="plotly_white")
        html = figure.to_html(full_html=False, include_plotlyjs=False, config=BAR)
        found[name] = Markup(html)
    return found
