"""Four hospitals whose files are in German, from folders of them to predictions.

The commands of one operator are counted, the four nodes' and those that ``LoopbackFederation``
stands for (init-federation, superlink, register) among them.
"""

import json
import re
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from simulations.loopback import LoopbackFederation
from tests.hospitals import GERMAN, SITES, WORDS, write_german_hospitals
from tests.network.support import wait_for

pytestmark = pytest.mark.processes

MOST = 14
TARGET = GERMAN["outcome"]
DIALECT = {"sep": ";", "decimal": ",", "encoding": "cp1252"}


def test_german_files_are_read_once_their_sites_have_said_how(tmp_path, engram):
    files = write_german_hospitals(tmp_path / "files")
    bytes_before = [path.read_bytes() for path in files]
    federation = LoopbackFederation(tmp_path / "fed", clients=len(SITES))
    for client, path in enumerate(files):
        federation.options[f"client-{client}"] = ["--data", f"csv:{path}"]
    commands, server = 3 + len(SITES), federation.server

    def run(*words):
        nonlocal commands
        commands += 1
        return engram(*words)

    def folder(client):
        return server.parent / f"client-{client}"

    def answer(client, *lines):
        with (folder(client) / "schema.toml").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    with federation:
        for name in federation.names[1:]:
            log = federation.log(name)
            wait_for(lambda log=log: "connected" in log.read_text(), 120, f"{name} is on line")
        there = ["--control", federation.control]
        agree = ["schema", server, "--target", TARGET, "--target", GERMAN["days"], *there]

        # How the files are encoded, each site's log asks, and has the line to write.
        status, _, err = run(*agree)
        assert status == 1, err
        for client in range(4):
            (line,) = {*re.findall(r"write (file\.encoding = \S+)", log_of(federation, client))}
            assert line == 'file.encoding = "cp1252"'
            answer(client, line, 'file.decimal = ","')

        # All else is asked at once; the values of the south as well, though it has other ones.
        status, out, err = run(*agree)
        assert status == 1, err
        said = [line for line in out.splitlines() if line.startswith("client-")]
        sexes = ", ".join(f'"{k}" = "..."' for k in "12")
        assert said == [
            "client-1: Geschlecht is numbers (1, 2), and text (männlich, weiblich) at the other "
            f"sites: write columns.Geschlecht = {{values = {{{sexes}}}}} into its schema.toml, or "
            "leave it out",
            "client-1: Kreatinin lies 80.4 times above the other sites' (median 86 against 1.07): "
            "another unit? columns.Kreatinin = {factor = ...} into its schema.toml converts it",
            "client-3: Alter has text among numbers: its log has the cells, and the line to write",
        ]
        west = log_of(federation, 3)
        assert "'?' in row 3 among numbers" in west
        answer(1, 'columns.Geschlecht = {values = {"1" = "weiblich", "2" = "männlich"}}')
        answer(1, f"columns.Kreatinin = {{factor = {1 / 88.4}}}")
        (line,) = {*re.findall(r"write (columns\.Alter = \{missing.*?\})", west)}
        answer(3, line)

        status, out, err = run(*agree)
        assert status == 0, out + err
        assert "client-" not in out
        agreed = tomllib.loads((server / "schema.toml").read_text(encoding="utf-8"))
        assert agreed["input-columns"] == "Alter,Blutdruck,Geschlecht,Kreatinin,Raucher"
        assert f"{TARGET}=Hause|Intensiv|Station" in agreed["categories"]

        train = ["run", "fedavg", "--federation", server, *there, "--out", "run"]
        settings = ["num-rounds=30", "eval-every=30", "local-epochs=2", "eta=0.1", "hidden=16"]
        settings += [f"target-column={TARGET}", "timeout=120"]
        status, out, err = run(*train, *(word for s in settings for word in ("--set", s)))
        assert status == 0, out + err
        results = json.loads(Path("run/results.json").read_text(encoding="utf-8"))
        assert "left-out" not in results
        assert results["classes"] == ["Hause", "Intensiv", "Station"]

        status, out, err = run("memory", "list", folder(1), "--json")
        assert status == 0, err
        (kept,) = json.loads(out)
        status, out, err = run("memory", "export", folder(1), kept["training"], 1, "south-model")
        assert status == 0, out + err
        status, out, err = run("predict", "south-model", files[1], "--out", "south.csv")
        assert status == 0, out + err
    assert commands <= MOST
    assert [path.read_bytes() for path in files] == bytes_before
    rows, predicted = pd.read_csv(files[1], **DIALECT), predictions(Path("south.csv"))
    assert {*predicted} <= {*WORDS["outcome"].values()}
    # Read with another unit or the sexes exchanged, no model of the others is right here.
    most = rows[TARGET].value_counts(normalize=True).max()
    assert (predicted.to_numpy() == rows[TARGET].to_numpy()).mean() > most


def log_of(federation, client):
    return federation.log(f"client-{client}").read_text(encoding="utf-8")


def predictions(path):
    """The column of predictions, whichever the dialect of the copy."""
    for dialect in (DIALECT, {}):
        try:
            return pd.read_csv(path, **dialect)["predicted"]
        except (KeyError, UnicodeDecodeError, pd.errors.ParserError):
            continue
    raise AssertionError(path.read_bytes()[:200])
