"""Surveys of the tables of a deployed federation's nodes, and the schema they agree on."""

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from engram.guards.secure.masks import SEED, public_of
from engram.settings.data import DataSettings, with_schema
from engram.settings.errors import Refused, RunStopped, few_names, one_line, say
from engram.settings.experiment import Experiment
from engram.settings.files import replace_file
from engram.settings.settings_files import read_settings
from engram.simulations.deployed import Attempt
from engram.sites.agreement import Finding, findings, proposed
from engram.sites.schema_survey import CHECK, READER, SURVEY, Survey, site_name

SCHEMA: Final = "schema.toml"
"""The settings that a federation's sites agree on, in the coordinator's folder."""

_HEAD: Final = (
    "# Written by engram schema; engram run --federation reads it before other settings.\n"
)


def survey_deployed(
    experiment: Experiment, server: Path, control: str | None, *, check: bool = False
) -> Survey:
    """Asks the nodes of a federation about their tables.

    Args:
        experiment: The settings of a run on their tables.
        server: The coordinator's folder.
        control: HOST:PORT of the SuperLink's Control API.
        check: Whether to ask who could take part in a run, too.

    Raises:
        RunStopped: They could not be asked.
    """
    private = os.urandom(SEED)
    given = {READER: public_of(private).hex()} | ({CHECK: ""} if check else {})
    asked = Asked("engram.sites.schema_survey:app", given, SURVEY)
    return Survey.from_json(answer_of_nodes(asked, experiment, server, control), private)


class Asked(NamedTuple):
    """A question to the nodes of a federation.

    Attributes:
        serverapp: The ServerApp that asks them.
        given: Files that it reads, by name.
        answer: Name of the file that it writes.
    """

    serverapp: str
    given: Mapping[str, str]
    answer: str


def answer_of_nodes(asked: Asked, experiment: Experiment, server: Path, control: str | None) -> str:
    """Returns what nodes of a federation, whose SuperLink runs, answer to a question.

    Args:
        asked: The question.
        experiment: The settings that go with it.
        server: The coordinator's folder.
        control: HOST:PORT of the SuperLink's Control API.

    Raises:
        RunStopped: They could not be asked.
    """
    server = server.absolute()
    try:
        (server / "flwr").mkdir(exist_ok=True)
        place = tempfile.TemporaryDirectory(prefix="asked-", dir=server / "flwr")
    except OSError as error:
        raise Refused(f"{server} cannot be written into: {error.strerror}") from error
    with place as name:
        folder = Path(name)
        for each, text in asked.given.items():
            (folder / each).write_text(text, encoding="utf-8")
        path = folder / asked.answer
        on_word = partial(say, file=sys.stderr)
        attempt = Attempt(experiment, folder, server, control, on_word, serverapp=asked.serverapp)
        try:
            attempt.await_file(path)
        finally:
            attempt.end(finished=path.is_file())
        if not path.is_file():
            raise RunStopped(attempt.verdict or attempt.trouble)
        return path.read_text(encoding="utf-8")


def agreed(
    found: Survey, given: Mapping[str, Any], targets: Sequence[str], *, union: bool = False
) -> tuple[dict[str, Any], list[Finding]]:
    """Returns the settings on which all sites can agree, and what is to be mended first.

    Args:
        found: What the sites say.
        given: Settings that stay as they are.
        targets: Columns that are no inputs; if there is one, it is the target.
        union: Whether columns that some sites lack are kept.

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
    """Returns why sites cannot take part in a run, and what looks odd in their tables."""
    absent = {site_name(client): why for client, why in (found.absent or {}).items()}
    settings = {
        key: v for key, v in experiment.to_config().items() if key in DataSettings.all_keys()
    }
    told = [
        finding._replace(stops=finding.site in absent)
        for finding in findings(found.named, settings)
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
    try:
        replace_file(path, "".join([_HEAD, *lines]).encode())
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error
    return path


def schema_of(server: Path) -> dict[str, Any]:
    """Returns the settings that a federation's sites agree on; none if there is no such file.

    Args:
        server: The coordinator's folder.

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
