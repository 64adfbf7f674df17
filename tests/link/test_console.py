"""Texts from anywhere, shown on a terminal or in a log: they can do nothing but be read."""

import ast
import io
from logging import getLogger

import pytest
from rich.table import Table

from engram.link.console import console
from engram.settings import errors
from engram.settings.fingerprint import source_root
from tests.source import source_files

FOREIGN = "\x1b[2J\x1b]52;c;aGk=\u202e\x9b1A [red]:boom: a"
ESCAPED = r"\x1b[2J\x1b]52;c;aGk=\u202e\x9b1A [red]:boom: a"


@pytest.fixture
def shown():
    screen = console()
    screen.file = io.StringIO()

    def shown(what):
        screen.print(what, width=120)
        return screen.file.getvalue()

    return shown


def table(text):
    made = Table(title=text)
    made.add_column(text)
    made.add_row(text)
    return made


@pytest.mark.parametrize("what", [FOREIGN, table(FOREIGN)], ids=["line", "table"])
def test_what_is_shown_is_neither_markup_nor_moves_the_cursor(shown, what):
    text = shown(what)
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.count(ESCAPED) == (1 if what is FOREIGN else 3)


def test_what_is_printable_is_as_it_was(shown):
    assert shown("98 ± 2 % for Zoë: naïve, 病院, │ 😀") == "98 ± 2 % for Zoë: naïve, 病院, │ 😀\n"


def test_a_log_is_one_printable_line(caplog):
    assert errors.printable("\x1b") == r"\x1b"
    getLogger("flwr.engram").warning("client %s: %d", "a\x1b[2J\nengram: all is well", 3)
    assert caplog.messages == [r"client a\x1b[2J\nengram: all is well: 3"]


def test_each_line_that_is_said_is_one_printable_line(capsys):
    errors.say("a\x1b[2J", "b\nengram: all is well")
    assert capsys.readouterr().out == "a\\x1b[2J\nb\\nengram: all is well\n"


def test_nothing_but_json_is_printed_as_it_is():
    """Texts of the commands go through ``say`` or a console, both of which escape."""
    bare = set()
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.unparse(node) if isinstance(node, ast.Call) else ""
            if text.startswith("print(") and not text.startswith("print(json.dumps("):
                bare.add(str(path.relative_to(source_root())))
    assert bare == {
        "engram/settings/errors.py",  # say
        "engram/cli/superlink_cli.py",  # an invitation, for a file
        "engram/cli/cli.py",  # the version, and errors of ours, in one line
        "simulations/flower_app/your_project/server_app.py",  # a template, its user's from then on
    }


def figures(rows, columns):
    return [[f"0.{row}{column}71 ± 0.16{column}{row}" for column in columns] for row in rows]


def wide(*headings, title="Losses of methods"):
    made = Table(title=title)
    made.add_column("method", no_wrap=True)
    for heading in headings:
        made.add_column(heading, no_wrap=True)
    for row, cells in enumerate(figures(range(3), range(len(headings)))):
        made.add_row(f"method-{row} + fine-tuning", *cells)
    return made


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_table_wider_than_the_terminal_is_shown_in_blocks_of_columns(width):
    screen = console()
    screen.file, screen.width = io.StringIO(), width
    screen.print(wide(*"abcdefgh"))
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for row, cells in enumerate(figures(range(3), range(8))):
        mine = [line for line in lines if f"method-{row} + fine-tuning" in line]
        assert len(mine) > 1
        assert [cell for line in mine for cell in cells if cell in line] == cells
    assert [line.strip() for line in lines].count("Losses of methods") == 1
    assert "…" not in screen.file.getvalue()


def test_a_column_wider_than_the_terminal_goes_on_in_the_next_line():
    screen = console()
    screen.file, screen.width = io.StringIO(), 12
    screen.print(wide("a", title=None))
    cells = [line.split("│")[2] for line in screen.file.getvalue().splitlines() if "│" in line]
    read = "".join(cell.strip() for cell in cells)
    assert read == "".join(f"0.{row}071±0.160{row}" for row in range(3))


def test_a_file_gets_whole_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    screen = console()
    screen.file = io.StringIO()
    screen.print(wide(*"abcdefgh"))
    lines = screen.file.getvalue().splitlines()
    for row, cells in enumerate(figures(range(3), range(8))):
        assert any(all(cell in line for cell in cells) for line in lines), row
