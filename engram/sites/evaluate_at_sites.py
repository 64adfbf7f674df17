"""The work of a coordinator that has nodes score given models, outside any run."""

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from engram.data.schema.columns import MOST_ROWS
from engram.data.schema.written import read_schema, to_toml
from engram.home.exported import Exported, load_model, read_exported
from engram.link.server.membership import Membership
from engram.server.engine import Engine
from engram.server.grid import PatientGrid
from engram.server.link_grid import LinkGrid
from engram.server.roster import attendance_of
from engram.settings.errors import Refused, brief
from engram.settings.experiment import Experiment
from engram.settings.files import read_json, replace_file
from engram.settings.fingerprint import fingerprint
from engram.sites.schema_survey import ANSWER, QUESTION
from engram.strategies.running.reply_border import Rejected, read_reply
from engram.wire.messages import EVALUATE, Content, Question
from engram.wire.wire import ARRAYS, CLIENTS, CONFIG, HELD_OUT, MODEL, read_list

_PATIENCE: Final = 30.0  # seconds that nodes have to come on line
_LONGEST: Final = 600.0  # seconds that scoring a model may take


class Given(NamedTuple):
    """A model to be scored."""

    name: str  # what the table calls it
    # Its description, without what is its site's own: values of rows, and files.
    about: dict[str, Any]
    state: Any  # its parameters


class Visited(NamedTuple):
    """A model's scores at a site."""

    model: str  # the model's name
    client: int  # the site's client
    rows: int  # number of test rows that were scored; 0 if none was
    scores: dict[str, float | None]  # by metric; None for one that is not defined on these rows
    why: str = ""  # why it was not scored, if so
    # Whether its training has held the rows out; else it may have learned from some.
    held_out: bool = False


def given_model(folder: str | Path) -> Given:
    """Reads a model that nodes are to score.

    Raises:
        Refused: If it cannot be loaded, or holds rows of its client.
    """
    exported, _, _ = read_exported(folder)
    if exported.form == "recalling":
        raise Refused(f"{folder} holds its client's rows, and is not sent to other sites")
    state = load_model(folder).state_dict()
    return Given(str(folder), _public(exported).to_json(), state)


def _public(exported: Exported) -> Exported:
    schema, settings = exported.kind.schema, dict(exported.settings)
    for key in ("data-dir", "out", "resume"):
        settings.pop(key, None)
    if written := settings.get("schema"):
        settings["schema"] = to_toml(read_schema(written).public())
    kind = exported.kind._replace(schema=schema and schema.public())
    return exported._replace(settings=settings, kind=kind, ranges=(), intervals=())


def visit(
    grid: Engine, models: Sequence[Given], clients: Sequence[int], *, patience: float = _PATIENCE
) -> list[Visited]:
    """Has all nodes score models, each on its clients' own test rows.

    They have ``patience`` seconds to come on line. Returns for each model what came of it at each
    client, ascending.
    """
    end = time.monotonic() + patience
    while len(nodes := sorted(grid.get_node_ids())) < len(clients) and time.monotonic() < end:
        time.sleep(0.1)
    found = list[Visited]()
    for model in models:
        scored, refused = _scored(grid, nodes, model)
        by_client = {each.client: each for each in scored}
        found += [
            by_client.get(client) or _missing(grid, model.name, client, refused)
            for client in clients
        ]
    return found


def _missing(grid: Engine, model: str, client: int, refused: dict[int, str]) -> Visited:
    called = grid.names()
    why = next((why for n, why in refused.items() if called.get(n) == f"client-{client}"), "")
    unnamed = "; ".join(why for n, why in refused.items() if n not in called)
    return Visited(model, client, 0, {}, why or unnamed or "its node is off line")


def _scored(grid: Engine, nodes: list[int], model: Given) -> tuple[list[Visited], dict[int, str]]:
    config = {"fingerprint": fingerprint(), MODEL: json.dumps(model.about)}
    content = {ARRAYS: model.state, CONFIG: config}
    questions = [Question(node, EVALUATE, content) for node in nodes]
    replies = {r.question.node: r for r in grid.ask(questions, timeout=_LONGEST)}
    called, found, refused = grid.names(), list[Visited](), dict[int, str]()
    for node in nodes:
        reply = replies.get(node)
        if reply is None:
            refused[node] = "its node does not answer"
            continue
        read = read_reply(reply, partial(_read, model.name))
        if isinstance(read, Rejected):
            refused[node] = read.reason
            continue
        name = called.get(node, "")
        found += [
            each
            for each in read
            if grid.membership is None
            or grid.membership.number(name) is None
            or grid.membership.is_named(name, each.client)
        ]
    return found, refused


def _read(model: str, content: Content) -> list[Visited]:
    entry = content[CLIENTS]
    clients, rows = read_list(entry, "ids", int), read_list(entry, "rows", int)
    if not all(0 < count < MOST_ROWS for count in rows):
        raise ValueError(f"rows must be in 1..{MOST_ROWS - 1}, got {brief(rows)}")
    columns = {name: read_list(entry, name, float) for name in read_list(entry, "metrics", str)}
    out = entry.get(HELD_OUT) is True
    return [
        Visited(model, client, n, dict(zip(columns, map(_plain, one), strict=True)), held_out=out)
        for client, n, *one in zip(clients, rows, *columns.values(), strict=True)
    ]


def _plain(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def ask(grid: LinkGrid, experiment: Experiment, folder: Path, membership: Membership) -> None:
    """Has the nodes score the models that a question names.

    Raises:
        EngramError: They cannot be asked.
    """
    models = [given_model(path) for path in read_json(folder / QUESTION)["folders"]]
    patient = PatientGrid(grid, least=1, membership=membership)
    clients = attendance_of(patient, experiment, training="", kind=None).counted
    found = visit(patient, models, clients)
    replace_file(folder / ANSWER, json.dumps([each._asdict() for each in found]).encode())
