"""The page of a live federation: its nodes, and the progress of its runs."""

import threading
import time
from pathlib import Path
from typing import Final

from dash import dcc, html
from dash.development.base_component import Component

from engram.runs.run import Run
from engram.server.status import Member, members
from engram.settings.errors import EngramError, Refused
from engram.studio.one_run import absences, drawn_column, node_rows, progress
from engram.studio.pages.figures import curves
from engram.studio.run_index import RunIndex
from engram.studio.widgets import address, facts, graph, grid

_FRESH: Final = 10.0  # seconds for which the server's answer is shown


class Federation:
    """Asks a server for its nodes, while somebody looks, and at most every ten seconds.

    ``server`` is the folder of that name.
    """

    def __init__(self, server: Path) -> None:
        self.server = server
        self._lock = threading.Lock()
        self._asked = -_FRESH
        self._busy = False
        self._found: list[Member] | EngramError | None = None

    @property
    def nodes(self) -> list[Member] | EngramError | None:
        """The nodes, or why they are unknown; None before the first answer."""
        with self._lock:
            due = not self._busy and time.monotonic() - self._asked > _FRESH
            self._busy |= due
        if due:
            threading.Thread(target=self._ask, daemon=True).start()
        return self._found

    def _ask(self) -> None:
        try:
            self._found = members(self.server)
        except EngramError as error:
            self._found = error
        except Exception as error:  # of a thread, which nobody else would hear of
            self._found = Refused(f"the server's answer cannot be read: {error!r}")
        finally:
            self._asked, self._busy = time.monotonic(), False


def federation(index: RunIndex, live: Federation) -> list[Component]:
    """Shows the nodes of a federation, and the runs on nodes that go on at this moment."""
    found: list[Component] = [html.H1(f"Federation {live.server}"), *_nodes(live)]
    going = [
        one.name
        for one in index.everything()
        if one.kind == "run" and one.state.startswith("running")
    ]
    records = {name: index.record(name) for name in going}
    records = {name: r for name, r in records.items() if r.on_nodes}
    if not records:
        return [*found, html.P(f"No run of {index.folder} goes on at this moment.")]
    for name, record in records.items():
        found += _run(index, name, record)
    return found


def _nodes(live: Federation) -> list[Component]:
    nodes = live.nodes
    if nodes is None:
        return [html.P("The server is being asked who is there.")]
    if isinstance(nodes, EngramError):
        return [html.P(str(nodes))]
    there = sum(node.status == "online" for node in nodes)
    keys = "client", "status", "since (UTC)", "at work on"
    rows = [dict(zip(keys, node, strict=True)) for node in nodes]
    counts = facts({"nodes": len(nodes), "on line": there})
    return [counts, grid("members", rows)] if rows else [counts]


def _run(index: RunIndex, name: str, record: Run) -> list[Component]:
    found = [html.H2(dcc.Link(name, href=address("/run", name=name))), progress(record)]
    if (epsilon := record.last_row.get("epsilon")) is not None:
        found.append(facts({"privacy spent": f"epsilon {epsilon:.3g}"}))
    if nodes := node_rows(record):
        found.append(grid(f"nodes-{name}", nodes))
    if away := absences(record):
        found += [html.H3("Had no part"), grid(f"absent-{name}", away)]
    if record.is_evaluated:
        main = record.metrics[0]
        trained = record.trains_network
        shown = curves(index.runs([name]), main) if trained else drawn_column(record, main.name)
        found.append(graph(f"curve-{name}", shown))
    return found
