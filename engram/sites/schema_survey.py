"""Surveys of the tables of a federation's nodes, and the schema they agree on.

``ask`` is the work of a coordinator that asks them, before anything trains.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, Final, NamedTuple

from engram.data.tables.table_summary import DescribedTable
from engram.guards.secure.masks import SEED, public_of
from engram.link.server.membership import Membership
from engram.server.engine import Engine
from engram.server.grid import PatientGrid
from engram.server.link_grid import LinkGrid
from engram.server.roster import attendance_of
from engram.server.roster_query import Answers
from engram.settings.data import DataSettings, with_schema
from engram.settings.errors import Refused, RunStopped, few_names, one_line, say
from engram.settings.experiment import Experiment
from engram.settings.files import read_json, refusing, replace_file
from engram.settings.settings_files import read_settings
from engram.simulations.deployed import Attempt, await_server
from engram.sites.agreement import Finding, findings, proposed

SCHEMA: Final = "schema.toml"
"""The settings that a federation's sites agree on, in the coordinator's folder."""

QUESTION, ANSWER = "question.json", "answer.json"  # files of a coordinator that asks nodes
_HEAD: Final = (
    "# Written by engram schema; engram run --federation reads it before other settings.\n"
)
_PATIENCE: Final = 30.0  # seconds without news after which no further node is waited for
_LONGEST: Final = 600.0  # seconds that those may take that are there

_log = getLogger("flwr.engram")


class Survey(NamedTuple):
    """Answers of a federation's nodes about their tables."""

    tables: dict[int, DescribedTable]  # the table of each client whose node describes one
    silent: dict[int, str]  # why the others' nodes do not
    # Number of training rows of each client that can take part; None if that was not asked.
    rows: dict[int, int] | None = None
    absent: dict[int, str] | None = None  # why the others cannot, likewise
    # Clients whose sites approve each run before they take part in it.
    approving: tuple[int, ...] = ()

    @property
    def named(self) -> dict[str, DescribedTable]:
        """The tables by their sites' names, in the order of their clients."""
        return {site_name(client): table for client, table in sorted(self.tables.items())}

    @classmethod
    def from_json(cls, text: str, private: bytes) -> "Survey":
        """Reads the answers of ``survey`` by the private half of the reader's key."""
        found: dict[str, Any] = json.loads(text)
        approving = tuple(found.pop("approving", ()))
        given = {
            key: part and {int(client): value for client, value in part.items()}
            for key, part in found.items()
        }
        tables, silent = dict[int, DescribedTable](), given.pop("silent")
        for client, letter in given.pop("tables").items():
            try:
                tables[client] = DescribedTable.opened(bytes.fromhex(letter), private)
            except ValueError as error:
                silent[client] = f"its description cannot be read: {error}"
        return cls(tables, silent, **given, approving=approving)


def site_name(client: int) -> str:
    """Returns the name of a client's folder."""
    return f"client-{client}"


def survey(
    grid: Engine, e: Experiment, reader: bytes, *, check: bool = False, patience: float = _PATIENCE
) -> str:
    """Asks all nodes to describe their tables; returns their answers for ``Survey.from_json``.

    Nodes seal them for the ``reader``'s public key, since disks keep what passes here. By ``check``
    they are also asked which clients could take part. After ``patience`` seconds without news,
    nodes that are off line are left out.
    """
    answers = Answers(grid, "", e.digest(), columns=reader)
    attendance = attendance_of(grid, e, training="", kind=None)
    now = time.monotonic()
    deadline, end = now + patience, now + _LONGEST
    while not answers.complete and time.monotonic() < (end if answers.silent else deadline):
        if answers.ask():
            deadline = time.monotonic() + patience
        else:
            time.sleep(0.1)
    entries, silent = answers.entries.values(), dict[int, str]()
    tables = {c: entry.table.hex() for entry in entries for c in entry.clients if entry.table}
    for client in attendance.counted:
        if client not in tables:
            # Of a node without a name, nobody knows whose it is.
            silent[client] = answers.refusal(client) or answers.in_words() or "no node hosts it"
    if not check:
        return json.dumps({"tables": tables, "silent": silent})
    try:
        attendance.wait(1, everyone=True, timeout=_LONGEST)
    except RunStopped as error:
        _log.debug("too few clients: %s", error)
    absent, roster = attendance.absent(), attendance.roster()
    rows = {c: roster.examples[c] for c in attendance.counted if c not in absent}
    able = {"rows": rows, "absent": absent, "approving": list(attendance.approving)}
    return json.dumps({"tables": tables, "silent": silent} | able)


def ask(grid: LinkGrid, experiment: Experiment, folder: Path, membership: Membership) -> None:
    """Asks the nodes, and writes their answers into a folder.

    Raises:
        EngramError: They cannot be asked.
    """
    patient = PatientGrid(grid, least=1, membership=membership)
    question = read_json(folder / QUESTION)
    reader = bytes.fromhex(question["reader"])
    found = survey(patient, experiment, reader, check=question["check"])
    replace_file(folder / ANSWER, found.encode())


def survey_deployed(experiment: Experiment, server: Path, *, check: bool = False) -> Survey:
    """Asks the nodes of a federation about their tables; by ``check``, also who could take part.

    Raises:
        RunStopped: They could not be asked.
    """
    private = os.urandom(SEED)
    question = {"reader": public_of(private).hex(), "check": check}
    said = answer_of_nodes("engram.sites.schema_survey:ask", question, experiment, server)
    return Survey.from_json(said, private)


def answer_of_nodes(
    work: str, question: Mapping[str, Any], experiment: Experiment, server: Path
) -> str:
    """Answers of a federation's nodes to a question; its server must run.

    The coordinator whose ``work`` is to ask them reads the question, and writes the answer.

    Raises:
        RunStopped: They could not be asked.
    """
    server = server.absolute()
    with refusing(f"{server} cannot be written into"):
        place = tempfile.TemporaryDirectory(prefix="asked-", dir=server)
    await_server(server, on_word := partial(say, file=sys.stderr))
    with place as name:
        folder = Path(name)
        (folder / QUESTION).write_text(json.dumps(question), encoding="utf-8")
        path = folder / ANSWER
        attempt = Attempt(experiment, folder, server, on_word, work=work)
        try:
            attempt.await_end()
        finally:
            attempt.end(finished=path.is_file())
        if not path.is_file():
            raise RunStopped(attempt.verdict or attempt.trouble)
        return path.read_text(encoding="utf-8")


def agreed(
    found: Survey, given: Mapping[str, Any], targets: Sequence[str], *, union: bool = False
) -> tuple[dict[str, Any], list[Finding]]:
    """Settings on which all sites can agree, and faults to be mended first; see ``proposed``.

    Raises:
        RunStopped: No site describes a table.
    """
    wrong = [Finding(site_name(client), why) for client, why in found.silent.items()]
    if not found.tables:
        raise RunStopped("; ".join(map(str, wrong)) or "no node describes its table")
    known = {*DataSettings.all_keys(), "task"}
    stays = {key: value for key, value in with_schema(given).items() if key in known}
    settings = proposed(found.named, stays, targets, union=union)
    return settings, [*findings(found.named, settings, targets), *wrong]


def checked(found: Survey, experiment: Experiment) -> list[Finding]:
    """Reasons why sites cannot take part in a run, and oddities of their tables."""
    absent = {site_name(client): why for client, why in (found.absent or {}).items()}
    told = [
        finding._replace(stops=finding.site in absent)
        for finding in findings(found.named, experiment.to_config())
        if finding.site in absent or not finding.stops
    ]
    explained = {finding.site for finding in told if finding.stops}
    return told + [Finding(site, why) for site, why in absent.items() if site not in explained]


def write_schema(server: Path, settings: Mapping[str, Any]) -> Path:
    """Writes the settings that sites agree on into the coordinator's folder.

    Raises:
        Refused: It cannot be written.
    """
    path = server / SCHEMA
    lines = [f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in settings.items()]
    with refusing(f"{path} cannot be written"):
        replace_file(path, "".join([_HEAD, *lines]).encode())
    return path


def schema_of(server: Path) -> dict[str, Any]:
    """Returns the settings that a federation's sites agree on; none if there is no such file.

    Raises:
        Refused: It is damaged.
    """
    path = server / SCHEMA
    if not path.is_file():
        return {}
    settings = read_settings(path)
    if strange := settings.keys() - {*DataSettings.all_keys(), "task"}:
        named = few_names(sorted(map(one_line, strange)))
        raise Refused(f"{path} must hold settings of data, got {named}: see engram schema")
    return settings
