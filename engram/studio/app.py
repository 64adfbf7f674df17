"""The board as a Dash app: the frame of its pages, and which page an address is of."""

from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from engram.link.addresses import Address
from engram.link.server.launch import check_free
from engram.settings.errors import EngramError, one_line
from engram.studio.clients import one_client
from engram.studio.comparing import comparing
from engram.studio.data_page import holdings
from engram.studio.http_limits import BoundedServer
from engram.studio.listing import chosen_runs, listing
from engram.studio.live import Federation, federation
from engram.studio.one_run import one_run
from engram.studio.run_index import RunIndex
from engram.studio.search_page import trials
from engram.studio.serving import server_of

Query = Mapping[str, Sequence[str]]

_log = getLogger("flwr.engram")

_COMPUTED: Final = "This page is being computed …"
_TICK: Final = 2000  # milliseconds after which a page asks for what is new
_FRAME: Final = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 0; color: #222; }
header { background: #2d3b8e; padding: 0.6rem 1.5rem; }
header a { color: white; text-decoration: none; margin-right: 1.5rem; }
main { max-width: 76rem; margin: 1rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 1.8rem; }
.facts { display: flex; flex-wrap: wrap; gap: 0.4rem 2rem; margin: 0.6rem 0; }
.facts dt { color: #666; font-size: 0.85rem; } .facts dd { margin: 0; font-weight: 600; }
.choices a { margin-right: 0.8rem; padding: 0.1rem 0.6rem; border-radius: 1rem;
  border: 1px solid #ccc; text-decoration: none; color: #2d3b8e; display: inline-block; }
.choices a.chosen { background: #2d3b8e; color: white; }
.progress progress { width: 20rem; margin-right: 1rem; accent-color: #2d3b8e; }
.off { color: #999; pointer-events: none; }
.gain { color: #0a7a2f; } .loss { color: #b3261e; }
.setting { font-style: italic; }
table { border-collapse: collapse; } td, th { padding: 0.15rem 0.8rem; text-align: right;
  border-bottom: 1px solid #ddd; } td:first-child, th:first-child { text-align: left; }
pre { background: #f4f4f4; padding: 0.8rem; overflow-x: auto; }
.ag-cell p { margin: 0; } .ag-theme-quartz, .ag-theme-alpine { margin: 0.8rem 0; }
</style></head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""


def server_for(
    folder: Path, server: Path | None, at: Address, tls: tuple[Path, Path] | None, token: str | None
) -> BoundedServer:
    """Returns the server of a folder's board, and of a federation's if its folder is given.

    For the other arguments and errors see ``Federation`` and ``server_of``.
    """
    index = RunIndex(folder)
    check_free(at, "--listen")
    index.everything()  # so that the first visitor need not wait
    app = board(index, Federation(server) if server else None)
    return server_of(app.server, at, tls, token)


def board(index: RunIndex, live: Federation | None) -> Dash:
    """Returns the board of a folder of runs, and of a federation if there is one.

    All that a page shows is said by its address, and no page changes anything.
    """
    app = Dash(__name__, title="Engram", update_title="", suppress_callback_exceptions=True)
    app.index_string = _FRAME
    links = [dcc.Link("Runs", href="/")]
    links += [dcc.Link("Federation", href="/federation")] if live else []
    unseen = [dcc.Location(id="address"), dcc.Interval(id="tick", interval=_TICK)]
    unseen.append(dcc.Store(id="stamp"))
    app.layout = html.Div([*unseen, html.Header(links), html.Main(_COMPUTED, id="page")])
    pages: dict[str, Callable[[Query], list[Component]]] = {
        "/": lambda query: listing(index, query),
        "/run": lambda query: one_run(index, query),
        "/compare": lambda query: comparing(index, query),
        "/client": lambda query: one_client(index, query),
        "/data": lambda query: holdings(index, query),
        "/search": lambda query: trials(index, query),
    }
    if live is not None:
        pages["/federation"] = lambda query: federation(index, live)

    def stamp(path: str, query: Query) -> list[Any]:
        """Returns a value that changes when a page is to be drawn anew."""
        names = [*query.get("name", ()), *query.get("run", ())]
        found: list[Any] = [path, sorted(query.items())]
        if not names:
            found += [one[:-1] for one in index.everything()]
        for name in names:
            found += index.stamps_around(name)
        if path == "/federation" and live is not None:
            nodes = live.nodes
            found.append(str(nodes))
        return found

    def show(path: str, search: str, ticks: int | None, before: Any) -> tuple[Any, Any]:
        del ticks
        found = parse_qs((search or "").removeprefix("?"))
        query = {key: [*dict.fromkeys(values)] for key, values in found.items()}
        try:
            now = repr(stamp(path, query))
            if ctx.triggered_id == "tick" and now == before:
                return no_update, no_update
            return _page(pages, path, query), now
        except EngramError as error:
            return html.P(str(error)), ""
        except Exception as error:  # files may be damaged, or go away while they are read
            _log.exception("the page %s%s cannot be shown", path, search or "")
            return html.P(f"This page cannot be shown: {one_line(repr(error))}"), ""

    app.callback(
        Output("page", "children"),
        Output("stamp", "data"),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("tick", "n_intervals"),
        State("stamp", "data"),
        running=[(Output("tick", "disabled"), True, False)],  # or it is computed twice, and slower
    )(show)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        f"() => {_COMPUTED!r}",
        Output("page", "children", allow_duplicate=True),
        Input("address", "pathname"),
        Input("address", "search"),
        prevent_initial_call=True,
    )
    app.callback(
        Output("compare-link", "href"),
        Output("compare-link", "className"),
        Input("grid-runs", "selectedRows"),
        prevent_initial_call=True,
    )(chosen_runs)
    return app


def _page(
    pages: Mapping[str, Callable[[Query], list[Component]]], path: str, query: Query
) -> list[Component]:
    if path not in pages:
        return [html.P("There is no such page.")]
    if path not in ("/", "/federation", "/compare") and "name" not in query:
        return [html.P("This page needs the name of a run in its address: choose one under Runs.")]
    return pages[path](query)
