"""`engram ledger`, and what `engram status` and `engram log` have of a site's budget."""

import json

import pytest

from engram.sites import ledger as module
from engram.sites.ledger import Ledger
from tests.sites.budgets import DELTA, epsilon_of
from tests.sites.test_site_cli import LINE as TRAINED

COMMON = ("kind", "run", "training", "method", "round", "clients", "rows")
LINE = {key: TRAINED[key] for key in COMMON}
LINE |= {"noise-multiplier": 8.0, "by": "fl.example.org:9092, by its certificate"}


@pytest.fixture
def book(folder):
    module._read.clear()
    (folder / "policy.toml").write_text("epsilon = 4.0\n")
    found = Ledger(folder / "state" / "ledger", 4.0, DELTA)
    found.spend("a" * 64, 0.0625, LINE)
    found.spend("a" * 64, 0.0625, LINE | {"kind": "evaluate", "rows": 30})
    return found


def test_it_shows_each_answer_and_what_is_spent(engram, folder, book):
    status, out, _ = engram("ledger", folder)
    assert status == 0
    first, second = epsilon_of([0.0625]), epsilon_of([0.125])
    rows = [line for line in out.splitlines() if "fedavg" in line]
    assert len(rows) == 2
    for row, cells in zip(
        rows,
        [("17", "3", "trained [1]", "120", "8", first), ("scored [1]", "30", second)],
        strict=True,
    ):
        for cell in cells:
            assert (f"{cell:.4g}" if isinstance(cell, float) else cell) in row
    last = f"account 0 (1 data set): epsilon {second:.4g} of 4 at delta 1e-05"
    assert out.splitlines()[-1] == last
    found = json.loads(engram("ledger", folder, "--json")[1])
    assert (found["epsilon"], found["delta"], found["fault"]) == (4.0, DELTA, "")
    assert found["accounts"] == {"0": pytest.approx(second, rel=1e-6)}
    assert found["lines"][0].items() >= LINE.items()
    assert f"budget    {last}" in engram("status", folder)[1]
    spent = json.loads(engram("status", folder, "--json")[1])["spent"]
    assert spent == {"0": pytest.approx(second, rel=1e-6)}


def test_without_answers_nothing_is_spent(engram, folder):
    (folder / "state").mkdir()
    assert engram("ledger", folder)[:2] == (0, "nothing is spent\n")


def test_a_total_that_is_gone_is_said(engram, folder, book):
    (folder / "policy.toml").unlink()
    assert engram("ledger", folder)[1].endswith("nothing is counted, and nothing refused\n")


def test_a_damaged_ledger_is_shown_and_accepted(engram, folder, book):
    file = folder / "state" / "ledger" / "ledger.jsonl"
    file.write_text(file.read_text().replace('"rows": 120', '"rows": 12'))
    module._read.clear()
    status, out, err = engram("ledger", folder)
    assert status == 1
    assert "fedavg" in out
    fault = "line 1 of the ledger is not what was written"
    assert f"{fault}; engram ledger {folder} --accept begins it anew, with what is known" in err
    assert engram("ledger", folder, "--accept", "--others")[0] == 2
    status, out, _ = engram("ledger", folder, "--accept")
    assert status == 0
    assert "ledger.damaged-1; a new one has what is known of it:" in out
    assert f"epsilon {epsilon_of([0.125]):.4g} of 4" in out
    assert engram("ledger", folder)[0] == 0
    assert "its ledger was mended: it was damaged" in engram("log", folder)[1]
    assert engram("ledger", folder, "--accept")[1] == "the ledger is whole, and stays as it is\n"


def test_a_deleted_ledger_is_shown_and_begins_anew_with_what_was_spent(engram, folder, book):
    (folder / "state" / "ledger" / "ledger.jsonl").unlink()
    module._read.clear()
    gone = "the ledger has 0 lines and its head is line 2: it was deleted"
    status, _, err = engram("ledger", folder)
    assert status == 1
    assert f"{gone}; engram ledger {folder} --accept begins it anew" in err
    assert f"budget    {gone}" in engram("status", folder)[1]
    out = engram("ledger", folder, "--accept")[1]
    assert out.splitlines()[0] == "the ledger was gone; a new one has what is known of it:"
    told = f"account 0 (1 data set): epsilon {epsilon_of([0.125]):.4g} of 4 at delta 1e-05"
    assert out.splitlines()[1:] == [told]
    assert engram("ledger", folder)[1].splitlines()[-1] == told


def test_data_of_others_are_declared(engram, folder, book):
    assert engram("ledger", folder, "--others")[0] == 0
    book.spend("b" * 64, 0.25, LINE)
    out = engram("ledger", folder)[1]
    assert "the next new data are of others" in out
    assert f"account 1 (1 data set): epsilon {epsilon_of([0.25]):.4g} of 4" in out
