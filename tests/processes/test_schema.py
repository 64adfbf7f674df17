"""Four hospitals on nodes of their own, by the commands of the manual.

From a folder of files to predictions at a site it takes ten: init-federation, superlink, register,
node, schema, schema again, run, memory list, memory export, predict.
"""

import json
import tomllib
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from engram.data.schema.columns import Column
from engram.data.tables.table_summary import DescribedColumn, DescribedTable
from engram.scoring.event_tables import collect_tables, event_table
from engram.tables.survival.curves import kaplan_meier
from tests.hospitals import SITES, write_hospitals
from tests.processes.support import federation_of

pytestmark = pytest.mark.processes

QUICK = ["num-rounds=2", "hidden=8", "timeout=600", "eval-every=2"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Each hospital's file, as a node of its own reads it; to be mended in place."""
    return write_hospitals(tmp_path_factory.mktemp("hospitals"))


def test_hospitals_agree_train_and_take_their_models_home(tmp_path, files, engram):
    with federation_of(tmp_path / "fed", files) as federation:
        server = federation.server
        agree = ["schema", server, "--target", "outcome", "--target", "days"]
        names_faults_and_no_cells(engram(*agree), federation)

        write_hospitals(files[0].parent, mended=True)
        status, out, err = engram(*agree)
        assert (status, out.splitlines()[-1].partition(":")[2]) == (
            0,
            f" written; next: engram run METHOD --federation {server} --check",
        ), err
        agreed = tomllib.loads((server / "schema.toml").read_text())
        assert agreed["input-columns"] == "age,bp,crea,sex,smoker"
        columns = tomllib.loads(agreed["schema"])["columns"]
        assert columns["sex"]["values"] == ["f", "m"]
        assert columns["smoker"]["values"] == ["former", "never", "current"]

        status, out, err = engram("statistics", server, "--csv")
        assert status == 0, err
        hold_for_their_files(pd.read_csv(StringIO(out)), files)
        keeps_no_answer(server)

        run = ["run", "fedper", "--federation", server]
        run += [word for setting in ("target-column=outcome", *QUICK) for word in ("-s", setting)]
        status, out, err = engram(*run, "--check")
        assert status == 0, out + err
        assert f"fedper on {server}: 4 of 4 sites can take part; nothing was trained" in out
        status, out, err = engram(*run, "--out", "run", "--json")
        assert status == 0, out + err
        results = json.loads((tmp_path / "run" / "results.json").read_text())
        assert "left-out" not in results

        for client, name in enumerate(SITES):
            if client < 2:
                take_home(engram, server.parent / f"client-{client}", client, f"{name}-model")
        predicts_in_its_own_units(engram, files)
        models = ["north-model", "south-model"]
        status, out, err = engram("evaluate", *models, "--federation", server, "--json")
        assert status == 0, out + err
        table = json.loads(out)
        assert [(Path(each["model"]).name, each["client"]) for each in table] == [
            (model, client) for model in models for client in range(4)
        ]
        at_home = [each for each in table if each["model"].endswith("north-model")]
        accuracy = results["clients"]["accuracy"][0]
        assert at_home[0]["scores"]["accuracy"] == float(f"{accuracy:.3g}")
        assert [each["held_out"] for each in at_home] == [True, False, False, False]
        assert [each["rows"] for each in at_home] == results["clients"]["queries"]
        status, out, err = engram("adapt", "run", "--data", f"csv:{files[2]}", "--out", "new-model")
        assert status == 0, out + err
        assert "adapted, cross-validated" in out
        keeps_a_column_that_a_site_lacks(engram, files, server, agree)
        has_survival_curves(engram, files, server)


def names_faults_and_no_cells(said, federation):
    """Checks what is said of the west's one "?", and what its log alone says."""
    status, out, err = said
    assert status == 1, err
    lines = out.splitlines()
    assert lines[0].startswith("client-1: crea lies 80.4 times above the other sites'")
    asks = "age has text among numbers: its log has the cells, and the line to write"
    assert lines[1] == f"client-3: {asks}"
    log = federation.log("client-3").read_text()
    line = 'columns.age = {missing = ["?"]}'
    assert f"age has '?' in row 5 among numbers: write {line}" in log
    assert "client-3 cannot take part before the above is mended" in out
    agreed = tomllib.loads((federation.server / "schema.toml").read_text())
    assert agreed["input-columns"] == "age,bp,crea,sex,smoker"  # for one cell, none is left out


def keeps_no_answer(server):
    """Checks that no file of the server has what a site has told of a column."""
    kept = [path for path in server.rglob("*") if path.is_file()]
    assert server / "schema.toml" in kept
    assert [*(server / "runs").iterdir()] == []  # what was on its way
    words = '"name": "age", "kind": "number"'
    assert words in DescribedTable(9, {"age": DescribedColumn(Column("age", "number"))}).told()
    assert not [path for path in kept if words.encode() in path.read_bytes()]


def keeps_a_column_that_a_site_lacks(engram, files, server, agree):
    """Has the east lack bp, and MOLAR train on it anyway; the east predicts by its model."""
    east = pd.read_csv(files[2]).drop(columns="bp")
    east.to_csv(files[2], index=False)
    status, out, err = engram(*agree, "--union")
    assert status == 0, out + err
    assert "client-2: lacks bp (129): there it is missing in all rows" in out
    agreed = tomllib.loads((server / "schema.toml").read_text())
    assert agreed["input-columns"] == "age,bp,crea,sex,smoker"
    assert tomllib.loads(agreed["schema"])["columns"]["bp"]["default"].startswith("129")
    run = ["run", "molar", "--federation", server, "--set", "target-column=days"]
    status, out, err = engram(*run, "--out", "union", "--json")
    assert status == 0, out + err
    results = json.loads(Path("union/results.json").read_text())
    assert (results["sites"], results["left-out"]) == (4, {})
    assert results["shared"]["names"][:4] == ["age", "bp", "crea", "sex=m"]
    node = server.parent / "client-2"
    trainings = json.loads(engram("memory", "list", node, "--json")[1])
    (training,) = [each["training"] for each in trainings if each["method"] == "molar"]
    status, out, err = engram("memory", "export", node, training, 2, "east-model")
    assert status == 0, out + err
    status, out, err = engram("predict", "east-model", files[2], "--out", "east.csv")
    assert status == 0, out + err
    assert pd.read_csv("east.csv")["predicted"].notna().all()


def has_survival_curves(engram, files, server):
    """Has sites write down which columns are times and events, as if men had one each.

    The west tells its figures as of before one cell was mended: these have no events.
    """
    roles = '[columns.days]\nrole = "time"\n[columns.sex]\nrole = "event"\nvalues = ["f", "m"]\n'
    for client in range(4):
        (server.parent / f"client-{client}" / "schema.toml").write_text(roles)
    status, out, err = engram("statistics", server, "--survival", "--csv")
    assert status == 0, err
    assert "log-rank test of 3 sites" in err
    assert "client-3: left out" in err
    rows = map(pd.read_csv, files[:3])
    found = collect_tables([event_table(d["days"], d["sex"] == "m") for d in rows])
    told = pd.read_csv(StringIO(out)).set_index("site")
    assert [*told.index.unique()] == ["all", "client-0", "client-1"]
    expected = found.total.ends, found.total.at_risk, *found.total[2:], kaplan_meier(found.total)[1]
    for name, column in zip(told, expected, strict=False):
        assert told.loc["all", name].tolist() == pytest.approx(column.tolist(), abs=1e-6)


def hold_for_their_files(found, files):
    """Checks the statistics of three columns of all sites."""
    told = found.set_index(["column", "site"])
    tables = [pd.read_csv(path) for path in files]
    for column in ("age", "crea", "days"):
        for client, table in enumerate(tables):
            row, values = told.loc[(column, f"client-{client}")], table[column]
            count = values.isna().sum()  # of fewer than five rows, nothing is told
            assert row.rows == len(values)
            assert row.missing == count if count >= 5 else pd.isna(row.missing)
            expected = [values.mean(), *values.quantile([0.1, 0.5, 0.9])]
            within = (expected[3] - expected[1]) / 200  # half of a hundredth
            told_here = [row["mean"], row.low, row["median"], row.high]
            assert told_here == pytest.approx(expected, abs=within)
            squares = ((values - values.median()) ** 2).dropna().sort_values()
            if squares[-4:].sum() > squares.sum() / 2:  # it would be theirs alone
                assert pd.isna(row.deviation)
            else:
                assert row.deviation == pytest.approx(values.std(), abs=within)
        all_rows = pd.concat(tables)[column]
        assert told.loc[(column, "all")].rows == len(all_rows)
        assert told.loc[(column, "all")]["mean"] == pytest.approx(all_rows.mean(), rel=1e-2)
        quantiles = all_rows.quantile([0.1, 0.5, 0.9]).tolist()
        row = told.loc[(column, "all")]
        within = (quantiles[2] - quantiles[0]) / 8  # two bins
        assert [row.low, row["median"], row.high] == pytest.approx(quantiles, abs=within)
    assert told.loc[("sex", "all")].kind == "category"
    counts = [table.smoker.isna().sum() for table in tables]
    missing = told.loc[("smoker", "all")].missing
    assert missing == sum(counts) if min(counts) >= 5 else pd.isna(missing)


def take_home(engram, node, client, model):
    """Has a node write the model that serves its client."""
    status, out, err = engram("memory", "list", node, "--json")
    assert status == 0, err
    (there,) = json.loads(out)
    status, out, err = engram("memory", "export", node, there["training"], client, model)
    assert status == 0, out + err
    card = (Path(model) / "card.md").read_text()
    assert "| run | run, after round 2 |" in card
    assert "| outputs | classes: home, icu, ward |" in card


def predicts_in_its_own_units(engram, files):
    """Predicts a site's rows by its model, and notes those that are in other units."""
    status, out, err = engram("predict", "north-model", files[0], "--out", "north.csv")
    assert (status, "note:" in out) == (0, False), out + err
    found, rows = pd.read_csv("north.csv"), pd.read_csv(files[0])
    assert len(found) == SITES["north"]
    assert set(found["predicted"]) <= {"home", "icu", "ward"}
    rows.assign(crea=rows.crea * 88.4).to_csv("raw.csv", index=False)
    status, out, err = engram("predict", "north-model", "raw.csv", "--out", "odd.csv")
    assert status == 0, err
    assert "note: raw.csv lies far from the rows that the model has learned from (crea: " in out
