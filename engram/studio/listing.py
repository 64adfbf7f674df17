"""The first page: all runs of the folder, and the settings that differ."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dash import dcc, html
from dash.development.base_component import Component

from engram.runs.run_list import Entry
from engram.studio.run_index import RunIndex, differing
from engram.studio.widgets import address, escaped, grid, linked

_PAGES: Final = {"run": "/run", "comparison": "/compare", "search": "/search"}


def listing(index: RunIndex, query: Mapping[str, Sequence[str]]) -> list[Component]:
    """Lists the comparisons, searches, studies and runs of the folder."""
    del query
    found = index.everything()
    runs = [one for one in found if one.kind == "run"]
    groups = [one for one in found if one.kind != "run"]
    shown: list[Component] = [html.H1(str(index.folder))]
    if not found:
        return [*shown, html.P("There is no run here yet: engram run begins one.")]
    if groups:
        shown += [html.H2("Comparisons, searches and studies"), _groups(groups)]
    if runs:
        link = dcc.Link("Compare the selected runs", href="/", id="compare-link", className="off")
        shown += [html.H2(f"{len(runs)} runs"), _runs(runs), html.P(link)]
    return shown


def _groups(groups: Sequence[Entry]) -> Component:
    keys = "name", "kind", "of", "data", "state", "begun"
    each = ((_link(one), one.kind, one.about, one.data, one.state, one.begun) for one in groups)
    rows = [dict(zip(keys, cells, strict=True)) for cells in each]
    return grid("groups", rows, [{"field": key, "link": key == "name"} for key in keys])


def _runs(runs: Sequence[Entry]) -> Component:
    apart = differing(one.settings for one in runs)
    rows = [_row(one, apart) for one in runs]
    columns: list[dict[str, Any]] = [{"field": key, "link": key == "name"} for key in rows[0]]
    for column in columns[-len(apart) :] if apart else []:
        column["headerClass"] = "setting"
    columns = [column for column in columns if column["field"] != "id"]
    several = {"mode": "multiRow", "checkboxes": True, "headerCheckbox": True}
    return grid("runs", rows, columns, rowSelection=several)


def _row(one: Entry, apart: Sequence[str]) -> dict[str, Any]:
    first = {"id": one.name, "name": _link(one), "method": one.about, "data": one.data}
    last = {"state": one.state, "score, last round": one.score, "begun": one.begun}
    own = {key: one.settings.get(key) for key in apart}
    return {**first, "seed": one.settings.get("seed"), **last, **own}


def _link(one: Entry) -> str:
    if one.kind not in _PAGES:
        return escaped(one.name)
    return linked(one.name, address(_PAGES[one.kind], name=one.name))


def chosen_runs(rows: Sequence[Mapping[str, Any]] | None) -> tuple[str, str]:
    """Returns the address of the page that compares some rows of the grid, and the link's class."""
    if not rows:
        return "/", "off"
    return address("/compare", run=[row["id"] for row in rows]), ""
