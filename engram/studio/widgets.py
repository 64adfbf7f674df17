"""Parts of which the board's pages consist."""

import re
from collections.abc import Mapping, Sequence
from html import escape as html_escape
from typing import Any, Final
from urllib.parse import urlencode

from dash import dcc, html
from dash.development.base_component import Component
from dash_ag_grid import AgGrid
from plotly.graph_objects import Figure

from engram.compare.text_tables import TextTable
from engram.studio.pages.figures import BAR

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]()<>#+!|~-])")
_GRID: Final = {
    "animateRows": False,
    "enableCellTextSelection": True,
    "suppressFieldDotNotation": True,  # settings are called method.key
}
_ROWS: Final = 12  # shown without scrolling

Columns = Sequence[Mapping[str, Any]]


def address(path: str, **query: str | int | Sequence[str]) -> str:
    """Returns the address of a page and its subject."""
    return f"{path}?{urlencode(query, doseq=True)}"


def plain(text: str) -> str:
    """Escapes a text for plotly, which reads some tags."""
    return html_escape(text, quote=False)


def escaped(text: str) -> str:
    """Escapes a text for a cell of Markdown."""
    return _SPECIAL.sub(r"\\\1", text)


def linked(text: str, path: str) -> str:
    """Returns a link for a cell of a column with ``link``."""
    return f"[{escaped(text)}]({path.replace('(', '%28').replace(')', '%29')})"


def facts(told: Mapping[str, object]) -> Component:
    """Shows names and values; those without a value are left out."""
    shown = {name: value for name, value in told.items() if value not in (None, "")}
    parts = [html.Div([html.Dt(name), html.Dd(str(value))]) for name, value in shown.items()]
    return html.Dl(parts, className="facts")


def choices(links: Mapping[str, str], chosen: str) -> Component:
    """Shows links to variants of a page, of which one is the present."""
    marks = {name: "chosen" if name == chosen else "" for name in links}
    each = [dcc.Link(name, href=to, className=marks[name]) for name, to in links.items()]
    return html.Nav(each, className="choices")


def graph(name: str, figure: Figure) -> Component:
    """Shows a figure that keeps its zoom when new data come."""
    figure.update_layout(uirevision=name, template="plotly_white", margin={"t": 40, "b": 50})
    return dcc.Graph(id=f"figure-{name}", figure=figure, config=BAR)


def number(field: str, digits: int = 2, **more: Any) -> dict[str, Any]:
    """Returns a column that is sorted and filtered as numbers."""
    shown = f"params.value == null ? '' : d3.format(',.{digits}f')(params.value)"
    kind = {"filter": "agNumberColumnFilter", "type": "rightAligned"}
    return {"field": field, **kind, "valueFormatter": {"function": shown}, **more}


def grid(
    name: str, rows: Sequence[Mapping[str, Any]], columns: Columns | None = None, **more: Any
) -> Component:
    """Shows rows that can be sorted and filtered; only those in view are drawn.

    Args:
        name: Of the grid, unique on its page.
        rows: The rows.
        columns: As AG Grid takes them; with ``link`` set, its cells come from ``linked``. By
            default a plain one for each key of the first row.
        more: Further options of AG Grid.
    """
    own = [
        {"headerName": column["field"]}
        | {key: value for key, value in column.items() if key != "link"}
        | ({"cellRenderer": "markdown"} if column.get("link") else {})
        for column in columns or [{"field": key} for key in rows[0]]
    ]
    shown: Component = AgGrid(
        id=f"grid-{name}",
        rowData=list(rows),
        columnDefs=own,
        defaultColDef={"filter": True, "sortable": True, "resizable": True, "minWidth": 90},
        columnSize="autoSize",
        getRowId="params.data.id" if rows and "id" in rows[0] else None,  # keeps what is marked
        dashGridOptions=_GRID | more,
        style={"height": f"{60 + 42 * min(len(rows), _ROWS)}px"},
    )
    return shown


def plain_table(table: TextTable) -> Component:
    """Shows a small table, and its lines below it."""
    head = html.Tr([html.Th(cell) for cell in table.heading])
    body = [html.Tr([html.Td(str(cell)) for cell in row]) for row in table.rows]
    words = [html.P(line) for line in table.words]
    return html.Section([html.H2(table.title), html.Table([head, *body]), *words])
