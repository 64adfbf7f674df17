"""A node's description of its table; figures are told anew once enough rows have changed."""

import hashlib
import json
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Final, NamedTuple

from engram.client.encrypted_file import Damaged, read_key, seal, unseal
from engram.client.node_queries import kept_here, own_settings
from engram.data.schema.columns import Column, Kind, Schema
from engram.data.schema.written import to_toml
from engram.data.tables.table_summary import SCHEMA, DescribedColumn, DescribedTable, site_schema
from engram.link.node_config import NodeConfig, hosted_clients
from engram.settings.errors import DataError, Refused, printable
from engram.settings.files import read_file, refusing, replace_file
from engram.sites.approvals import APPROVALS, Request, require
from engram.sites.policy import Policy
from engram.sites.policy_checks import of_unaccounted
from engram.wire.clock import now
from engram.wire.messages import Content, NodeContext, Question
from engram.wire.roster import describe_node
from engram.wire.wire import COLUMNS, ROSTER_QUERY, config_of

_log = getLogger("flwr.engram")

_MIXED: Final = "mixed"  # the rule of this name in engram.data.schema.kinds
_TOLD: Final = "described"  # in a node's state: the last figures


class _Figures(NamedTuple):
    """Figures of a table, with hashes of its rows."""

    table: DescribedTable
    rows: list[int]  # hashes of the rows behind them
    least: int  # fewest rows behind each
    schema: str = ""  # the site's own schema, by which they were read

    def stand(self, found: "_Figures") -> bool:
        """Whether they are told again in place of those that are found now."""
        before, after = Counter(self.rows), Counter(found.rows)
        changed = max((after - before).total(), (before - after).total())
        same = (
            self.schema == found.schema and self.table.columns.keys() == found.table.columns.keys()
        )
        return changed < found.least <= self.least and (changed > 0 or same)

    def asking(self, found: "_Figures", written: Collection[str]) -> DescribedTable:
        """Returns them with the questions that are open now.

        These are of columns that the site has ``written`` of, and of text among numbers, by which
        it cannot take part: others may depend on a single row, and are as they were.
        """
        columns = dict(self.table.columns)
        for name, last in columns.items():
            now = found.table.columns.get(name, last).asked
            if name in written or _MIXED in (now, last.asked):
                choices = last.choices if last.asked == now else ()
                columns[name] = replace(last, asked=now, choices=choices)
        return self.table._replace(columns=columns)


def _read(path: Path, key: bytes | None) -> _Figures | None:
    try:
        table, *others = json.loads(unseal(read_file(path, links=False), _TOLD, key))
        return _Figures(DescribedTable.from_json(table), *others)
    except FileNotFoundError:
        return None
    except (OSError, Damaged, ValueError) as error:
        told = f"{path}: {error}: without it, the table is described anew"
        raise kept_here(DataError(told)) from error


def _write(path: Path, key: bytes | None, figures: _Figures) -> None:
    body = json.dumps([figures.table.told(), *figures[1:]]).encode()
    with refusing("this site's state cannot be written"):
        replace_file(path, seal(body, _TOLD, key))


def _found(config: NodeConfig, schema: Schema, cache: Path, least: int) -> _Figures:
    try:
        from engram.data.tables.column_summaries import describe_table  # noqa: PLC0415 - loads pandas

        found = describe_table(config.data, schema, cache, least)
    except DataError as error:
        raise kept_here(error) from error
    for question in found.questions:
        _log.warning("%s: %s into %s", config.data, question, SCHEMA)
    return _Figures(found.table, found.rows, least, to_toml(schema))


def _worded(there: DescribedColumn, own: Column) -> DescribedColumn:
    kind, values = own.kind or there.column.kind, own.values or there.column.values
    return replace(there, column=replace(own.told(), kind=kind, values=values))


def described(
    question: Question, context: NodeContext, config: NodeConfig, policy: Policy
) -> tuple[Content, bool]:
    """Describes the columns of the node's own table; returns whether it tells new figures, too.

    Figures are told under policies that let answers leave alone and without noise. Under others,
    the schema that a person of the site has written is told, and nothing else.

    Raises:
        Awaited: The site has yet to approve the description.
        Refused: It has no table, does not describe it, or its cells are not as its schema says.
    """
    if not config.data or config.state is None:
        raise Refused("this node has no table of its own: it is started with --data csv:PATH")
    if not config.describes:
        raise Refused("this node does not describe its columns: it was started by --no-describe")
    if question.kind != ROSTER_QUERY:
        raise Refused("columns must be asked for by a query of the roster")
    key = read_key(config.memory_key) if config.memory_key is not None else None
    path, schema = config.state / _TOLD, site_schema(config.identity)
    table, new = DescribedTable(0, {}), None
    if not (policy.secure or any(of_unaccounted(policy, ""))):
        cache = Path(str(own_settings(context.node_config, config)["data-dir"]))
        last, new = _read(path, key), _found(config, schema, cache, policy.least_count)
        stands = last and last.stand(new)
        table, new = (last.asking(new, schema.names), None) if last and stands else (new.table, new)
    elif not schema.columns:
        raise Refused(
            "this site's policy lets no figure of its rows leave (epsilon, secure, or privacy), "
            f"and its folder has no {SCHEMA} with its columns: the site writes one"
        )
    words = {
        own.name: _worded(table.columns.get(own.name, DescribedColumn(own)), own)
        for own in schema.columns
    }
    table = DescribedTable(table.rows, {**table.columns, **words})
    if policy.approval:
        told = table.told()
        terms = hashlib.sha256(told.encode()).hexdigest()[:32]
        settings = {"table": printable(told)}
        request = Request(terms, terms, context.run_id, "engram schema", 1, {}, 1, settings)
        require(config.state / APPROVALS, request, now())
    reader = config_of(question.content)[COLUMNS]
    try:
        letter = table.sealed(reader if isinstance(reader, bytes) else b"")
    except ValueError as error:
        raise Refused("columns must be a public key, for which descriptions are sealed") from error
    if new is not None:
        _write(path, key, new)
    (client,) = hosted_clients(0, config)
    return describe_node({client: max(1, table.rows)}, Kind(), table=letter), new is not None
