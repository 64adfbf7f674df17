"""What Flower's command says, in one line."""

import io
import os
import sys

import pytest
from rich.console import Console
from rich.panel import Panel

from engram.link.server import control
from engram.link.server.control import reason
from engram.link.server.launch import Launch
from engram.link.server.registration import names
from tests.samples import entry

LONG = "Connection to the SuperLink is unavailable. " * 3 + "See /etc/engram for its address."


def boxed(text, **options):
    """What typer prints for an error, on a terminal of 80 columns."""
    screen = io.StringIO()
    options = {"force_terminal": False} | options
    Console(file=screen, width=80, **options).print(Panel(text, title="Error", title_align="left"))
    return screen.getvalue()


def test_the_reason_is_what_stands_in_the_last_box():
    for said, expected in [
        (f"Using SuperLink: fed\n{boxed('no such file')}", "no such file"),
        (f"Usage: flwr run\n{boxed(LONG)}", LONG),
        (boxed(LONG, force_terminal=True, color_system="standard"), LONG),
        (boxed("one\n\ntwo | 2"), "one two | 2"),
        (f"{boxed('a warning')}goes on\n{boxed('the error')}", "the error"),
        ("+- Error -----+\n| no such     |\n| option      |\n+-------------+\n", "no such option"),
        ("Using SuperLink: fed\n\nit is full\n\n", "it is full"),
        ("", "it said nothing"),
    ]:
        with entry(said):
            assert reason(said) == expected


def test_a_reason_is_one_line_of_bounded_length():
    found = reason(boxed("word " * 1000))
    assert len(found) <= 300
    assert "\n" not in found


def test_an_answer_may_be_colored(tmp_path, monkeypatch):
    program = r'print("\x1b[1m{\x1b[0m\"success\": true\x1b[1m}\x1b[0m")'
    launch = Launch([sys.executable, "-c", program], dict(os.environ), tmp_path)
    monkeypatch.setattr(control, "flwr_command", lambda *words, control: launch)
    assert control.ask(tmp_path, "supernode", "list", what="the nodes") == {"success": True}


@pytest.mark.parametrize(("patience", "says"), [(0.0, True), (600.0, False)])
def test_a_command_that_waits_for_an_answer_says_so(tmp_path, monkeypatch, capsys, patience, says):
    """It is answered once it has said so, or at once."""
    go = tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n"
    program = (wait if says else "") + "print('{\"success\": true}')"
    launch = Launch([sys.executable, "-c", program], dict(os.environ), tmp_path)
    monkeypatch.setattr(control, "flwr_command", lambda *words, control: launch)
    monkeypatch.setattr(control, "_SAY", patience)

    def note(line, **options):
        print(line, **options)
        go.touch()

    monkeypatch.setattr(control, "print", note, raising=False)
    assert control.ask(tmp_path, "list", what="the runs") == {"success": True}
    told = "engram: the runs: waiting for the SuperLink to answer\n"
    assert capsys.readouterr().err == told * says


def test_a_broken_note_costs_a_name_and_nothing_else(tmp_path):
    clients = tmp_path / "clients"
    clients.mkdir()
    notes = {"client-0": b"123", "client-1": b"", "client-2": b"\xff\xfe", "client-3": b"9" * 5000}
    for name, note in notes.items():
        (clients / f"{name}.node").write_bytes(note)
    (clients / "client-4.node").symlink_to("nowhere")
    (clients / "client-5.node").mkdir()
    assert names(tmp_path) == {123: "client-0"}
