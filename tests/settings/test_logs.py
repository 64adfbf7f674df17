"""The lines of a federation's log: written by processes, read by whoever watches a run."""

import json
import logging
import re

import pytest

from engram.settings.logs import VARIABLE, Said, begin_log, read_said
from tests.samples import entry

LOG = logging.getLogger("flwr.engram")
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def lines(monkeypatch, capsys):
    """Returns what was logged since the log was begun."""
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [])  # put back at the end
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", False)

    def said():
        return capsys.readouterr().err.splitlines()

    return said


def test_a_line_has_time_level_and_logger_and_no_color(lines):
    begin_log()
    LOG.info("round %d", 3)
    logging.getLogger("flwr").warning("PREVIEW\n\n   of a feature")
    ours, flowers = lines()
    assert re.fullmatch(TIME + r" INFO \[engram\] round 3", ours)
    assert re.fullmatch(TIME + r" WARNING \[flwr\] PREVIEW of a feature", flowers)
    assert read_said(flowers + "\n") == Said("WARNING", "flwr", "PREVIEW of a feature")
    assert not read_said(flowers).is_warning


def test_lines_of_json_have_what_an_event_has_besides(lines, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    begin_log(as_json=True)
    LOG.warning("round 3", extra={"fields": {"round": 3}})
    (line,) = lines()
    found = json.loads(line)
    assert re.fullmatch(TIME, found.pop("time"))
    told = {"level": "WARNING", "logger": "engram", "message": "round 3", "round": 3}
    assert found == told
    assert read_said(line).is_warning


def test_a_traceback_follows_its_line(lines):
    begin_log()
    try:
        raise ValueError("odd")
    except ValueError:
        LOG.exception("it failed")
    first, *rest = lines()
    assert first.endswith("ERROR [engram] it failed")
    assert rest[-1] == "ValueError: odd"


def test_other_lines_are_none_of_ours():
    for line in ["", "round 3", "[]", "{}", "[" * 10**5, "INFO : \tup"]:
        with entry(line):
            assert read_said(line) is None
