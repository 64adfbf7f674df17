"""Four hospitals whose files are in German, from folders of them to predictions.

The commands of one operator are counted, the four nodes' and those that ``federation_of``
stands for (init-federation, superlink) among them. They are the documented ones.
"""

import json
import re
import tomllib
from itertools import groupby
from pathlib import Path

import pandas as pd
import pytest

from engram.settings.fingerprint import source_root
from tests.hospitals import GERMAN, SITES, WORDS, write_german_hospitals
from tests.processes.support import federation_of

pytestmark = pytest.mark.processes

MOST = 13
TARGET = GERMAN["outcome"]
DIALECT = {"sep": ";", "decimal": ",", "encoding": "cp1252"}


class Walk:
    """An operator: counted commands, and lines in sites' schemas."""

    def __init__(self, federation, engram):
        self.federation, self.engram = federation, engram
        self.commands = ["init-federation", "superlink", *["node"] * len(SITES)]

    def run(self, *words):
        self.commands.append(words[0])
        return self.engram(*words)

    def folder(self, client):
        return self.federation.server.parent / f"client-{client}"

    def answer(self, client, *lines):
        with (self.folder(client) / "schema.toml").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def asked(self, client, pattern):
        """The one line that a site's log has to write."""
        log = self.federation.log(f"client-{client}").read_text(encoding="utf-8")
        (line,) = {*re.findall(f"write ({pattern})", log)}
        return line


def test_german_files_are_read_once_their_sites_have_said_how(tmp_path, engram):
    files = write_german_hospitals(tmp_path / "files")
    before = [path.read_bytes() for path in files]
    with federation_of(tmp_path / "fed", files) as federation:
        walk = Walk(federation, engram)
        agree(walk)
        train(walk)
        take_home(walk, files[1])
    assert len(walk.commands) == MOST
    text = (source_root() / "docs" / "deployment.md").read_text(encoding="utf-8")
    part = text.partition("## From the tables of four hospitals")[2].partition("\n## ")[0]
    assert f"these are {MOST} commands" in part
    shown = re.findall(r"^\$ engram ([\w-]+)", part, re.MULTILINE)
    assert [name for name, _ in groupby(shown)] == [name for name, _ in groupby(walk.commands)]
    assert [path.read_bytes() for path in files] == before
    rows, predicted = pd.read_csv(files[1], **DIALECT), pd.read_csv("south.csv", **DIALECT)
    predicted = predicted["predicted"]
    assert {*predicted} <= {*WORDS["outcome"].values()}
    # Read with another unit or the sexes exchanged, no model of the others is right here.
    most = rows[TARGET].value_counts(normalize=True).max()
    assert (predicted.to_numpy() == rows[TARGET].to_numpy()).mean() > most


def agree(walk):
    """Has the sites answer all questions, each in its own schema, in two times."""
    there = walk.federation.server
    ask = ["schema", there, "--target", TARGET, "--target", GERMAN["days"]]
    # How the files are encoded, each site's log asks, and has the line to write.
    status, _, err = walk.run(*ask)
    assert status == 1, err
    for client in range(4):
        line = walk.asked(client, r"file\.encoding = \S+")
        assert line == 'file.encoding = "cp1252"'
        walk.answer(client, line, 'file.decimal = ","')

    # All else is asked at once; the values of the south as well, though it has other ones.
    status, out, err = walk.run(*ask)
    assert status == 1, err
    sexes = ", ".join(f'"{k}" = "..."' for k in "12")
    assert [line for line in out.splitlines() if line.startswith("client-")] == [
        "client-1: Geschlecht is numbers (1, 2), and text (männlich, weiblich) at the other "
        f"sites: write columns.Geschlecht = {{values = {{{sexes}}}}} into its schema.toml, or "
        "leave it out",
        "client-1: Kreatinin lies 80.4 times above the other sites' (median 86 against 1.07): "
        "another unit? columns.Kreatinin = {factor = ...} into its schema.toml converts it",
        "client-3: Alter has text among numbers: its log has the cells, and the line to write",
    ]
    walk.answer(1, 'columns.Geschlecht = {values = {"1" = "weiblich", "2" = "männlich"}}')
    walk.answer(1, f"columns.Kreatinin = {{factor = {1 / 88.4}}}")
    walk.answer(3, line := walk.asked(3, r"columns\.Alter = \{missing.*?\}"))
    assert "?" in line

    status, out, err = walk.run(*ask)
    assert (status, "client-" in out) == (0, False), out + err
    schema = (walk.federation.server / "schema.toml").read_text(encoding="utf-8")
    agreed = tomllib.loads(schema)
    assert agreed["input-columns"] == "Alter,Blutdruck,Geschlecht,Kreatinin,Raucher"
    values = tomllib.loads(agreed["schema"])["columns"][TARGET]["values"]
    assert values == ["Hause", "Intensiv", "Station"]


def train(walk):
    server = walk.federation.server
    command = ["run", "fedavg", "--federation", server, "--out", "run"]
    settings = ["num-rounds=30", "eval-every=30", "local-epochs=2", "eta=0.1", "hidden=16"]
    settings += [f"target-column={TARGET}", "timeout=600"]
    status, out, err = walk.run(*command, *(word for s in settings for word in ("--set", s)))
    assert status == 0, out + err
    results = json.loads(Path("run/results.json").read_text(encoding="utf-8"))
    assert "left-out" not in results
    assert results["classes"] == ["Hause", "Intensiv", "Station"]


def take_home(walk, file):
    """Has the south take its model home, and predict its rows as their file is written."""
    status, out, err = walk.run("memory", "list", walk.folder(1), "--json")
    assert status == 0, err
    (kept,) = json.loads(out)
    export = ["memory", "export", walk.folder(1), kept["training"], 1, "south-model"]
    status, out, err = walk.run(*export)
    assert status == 0, out + err
    status, out, err = walk.run("predict", "south-model", file, "--out", "south.csv")
    assert status == 0, out + err
