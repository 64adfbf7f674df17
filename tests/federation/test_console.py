"""Texts from anywhere, shown on a terminal or in a log: they can do nothing but be read."""

import io
from logging import getLogger

import pytest
from rich.table import Table

from federation import errors
from federation.console import console

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
