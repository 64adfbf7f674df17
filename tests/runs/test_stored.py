"""Contents of files that do not fit their model: the words for what is wrong with them."""

import re
from pathlib import Path

import pytest

from engram.data.file_models import Clients, Name, Stored, of_kind
from engram.runs.folder_records import ScoresRow
from engram.settings.errors import Refused
from tests.samples import entry


class Row(Stored):
    """A folder, and how many clients are in it."""

    folder: Name
    clients: Clients = 1


DAMAGED = [
    (Row, {}, "it lacks folder"),
    (Row, [], " must be an object, got []"),
    (Row, {"folder": ".."}, "folder must be the name of a folder, got '..'"),
    (Row, {"folder": 3}, "folder must be a valid string, got 3"),
    (Row, {"folder": "a", "clients": "1"}, "clients must be a valid integer, got '1'"),
    (Row, {"folder": "a", "clients": 0}, "clients must be greater than or equal to 1, got 0"),
    (ScoresRow, {"round": 1, "ids": 2}, "ids must be a list, got 2"),
    (
        ScoresRow,
        {"round": 1, "ids": [0], "loss": [0.5, 0.25]},
        "columns of clients must be equally long, got [1, 2]",
    ),
]


def test_what_is_wrong_with_a_file_is_told_in_plain_words():
    for kind, contents, words in DAMAGED:
        line = f"^{re.escape(f'f.json is damaged: {words}')}$"
        with entry(kind, contents, words), pytest.raises(Refused, match=line):
            of_kind(kind, contents, Path("f.json"))
