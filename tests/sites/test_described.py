"""Descriptions of a node's table: its own schema, enough rows, its policy's rules."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.client import app as module
from engram.client.encrypted_file import new_key
from engram.data.schema.columns import Schema
from engram.data.source import Source
from engram.data.tables.column_summaries import describe_table
from engram.data.tables.table_summary import DescribedTable, site_schema
from engram.guards.secure.masks import public_of
from engram.link.records import to_parts
from engram.settings.data import DataSettings
from engram.settings.errors import AWAITED, Refused
from engram.sites import audit as audit_module
from engram.sites import described as described_module
from engram.sites.approvals import answer, requests
from engram.sites.audit import AUDIT, Audit
from engram.sites.policy import keep_policy
from engram.wire.roster import read_entry
from engram.wire.wire import COLUMNS, CONFIG, ROSTER_QUERY, SECURE_QUERY
from tests.samples import entry
from tests.sites.budgets import answer_of, refusal
from tests.sites.sites import ROSTER
from tests.support import declared_values, small

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PRIVATE = bytes(range(32))
SECRET = [{"epsilon": 8, "privacy": ["local"]}, {"secure": 3}, {"privacy": ["local", "central"]}]


@pytest.fixture(autouse=True)
def _afresh(monkeypatch):
    for each in (module, described_module, audit_module):
        monkeypatch.setattr(each, "now", lambda: NOON)


def wards(rows=60):
    """Patients of three wards, one of which has a single one; two lack an age."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "name": [f"Miller {k}" for k in range(rows)],
            "number": 400_000_000 + np.arange(rows),
            "ward": ["north"] * (rows // 2) + ["south"] * (rows - rows // 2),
            "age": rng.normal(60, 10, rows).round(1),
            "died": np.arange(rows) % 2,
        }
    )
    frame.loc[7, "ward"] = "rare"
    frame.loc[[3, 4], "age"] = np.nan
    return frame


class Site:
    """A node with a table, a policy and a schema of its own, which a server asks."""

    def __init__(self, folder, frame=None, **config):
        self.folder, self.table = folder, folder / "own.csv"
        self.write(wards() if frame is None else frame)
        where = {"state": str(folder / "state"), "policy": str(folder), "identity": str(folder)}
        self.config = {"partition-id": 0, "num-partitions": 1, "data": f"csv:{self.table}"}
        self.config |= where | config
        (folder / "state").mkdir()

    def write(self, frame):
        frame.to_csv(self.table, index=False)

    def says(self, file, **rules):
        lines = (f"{key.replace('_', '-')} = {rule!r}" for key, rule in rules.items())
        text = "\n".join(lines).replace("True", "true")
        (self.folder / file).write_text(text)

    def ask(self, *, kind=ROSTER_QUERY, key=None, **settings):
        asked = {COLUMNS: public_of(PRIVATE) if key is None else key}
        return answer_of(small(**settings), kind, {CONFIG: asked}, **self.config)

    def run(self, **settings):
        """Asks which clients could take part in a run."""
        return answer_of(small(**settings), ROSTER_QUERY, ROSTER, **self.config)

    def told(self, **settings):
        reply = self.ask(**settings)
        assert not reply.error, reply.error.reason
        return DescribedTable.opened(read_entry(reply.content).table, PRIVATE)

    def refusal(self, **settings):
        return refusal(self.ask(**settings))

    @property
    def rounds(self):
        return Audit(self.folder / "state" / AUDIT).rounds(NOON)


# --- Who decides how it is read --------------------------------------------------------------

ASKED = {
    "schema": [
        declared_values(name="|".join(f"Miller {k}" for k in range(60)), number="400000000|1"),
        'file.missing = ["Miller 3", "400000007", "rare", "1"]',
    ],
    "target_column": ["number", "age", "ward"],
    "task_column": ["ward"],
    "input_columns": ["age,number", "name"],
    "missing": ["median", "indicator"],
    "num_classes": [3],
    "standardize": ["client"],
}


def test_no_setting_of_a_server_changes_how_a_table_is_read(tmp_path):
    assert ASKED.keys() <= DataSettings.model_fields.keys()
    expected = Site(tmp_path).told()
    for number, (key, values) in enumerate(ASKED.items()):
        for each, value in enumerate(values):
            folder = tmp_path / f"{number}-{each}"
            folder.mkdir()
            assert Site(folder).told(**{key: value}) == expected, (key, value)
    columns = expected.columns
    assert [(n, c.column.kind, c.column.values, c.asked) for n, c in columns.items()] == [
        ("name", "identifier", (), "identifiers"),
        ("number", "identifier", (), "identifiers"),
        ("ward", "category", ("north", "south"), ""),
        ("age", "number", (), ""),
        ("died", "whole", ("0", "1"), ""),
    ]
    assert {c.missing for c in columns.values()} == {None}
    assert "rare" not in expected.told()
    assert "Miller" not in expected.told()


def test_a_site_reads_its_table_by_the_schema_that_it_has_written(tmp_path):
    site = Site(tmp_path, wards().assign(code=["01", "02"] * 30, level=["-99"] * 6 + ["3"] * 54))
    (tmp_path / "schema.toml").write_text(
        '[columns.code]\nkind = "category"\nvalues = ["01", "02"]\n'
        '[columns.level]\nkind = "number"\nunit = "mmol/l"\nmissing = ["-99"]\nfactor = 2\n'
        '[columns.ward]\nvalues = {north = "N", rare = "R", south = "S"}\n'
        '[columns.name]\nkind = "ignored"\n'
        '[columns.died]\nvalues = {0 = "1", 1 = "0"}\n'
    )
    columns = site.told().columns
    assert columns["code"].column.values == ("01", "02")
    assert columns["ward"].column.values == ("N", "R", "S")  # a person has said so
    level = columns["level"]
    assert (level.column.unit, level.missing) == ("mmol/l", 6)
    assert (level.mean, level.median) == (6, 6)
    assert (columns["name"].column.kind, columns["name"].asked) == ("ignored", "")
    assert columns["died"].column.values == ("0", "1")
    assert "-99" not in site.told().told()


ODD = {
    "text among numbers": ("age", "?", [3], "mixed", "number"),
    "a code": ("age", -99, range(6), "codes", "number"),
    "a code of few rows": ("age", -99, range(3), "codes", "number"),
    "a decimal comma": ("age", "1,5", range(60), "decorated", "number"),
    "dates": ("age", "2024-03-01", range(60), "dates", "ignored"),
}


@pytest.mark.parametrize(("column", "cell", "rows", "rule", "kind"), ODD.values(), ids=ODD)
def test_a_server_hears_that_a_column_is_asked_about_and_no_cells(
    tmp_path, warnings_of_engram, column, cell, rows, rule, kind
):
    frame = wards().astype({column: object})
    frame.loc[[*rows], column] = cell
    site = Site(tmp_path, frame)
    told = site.told().columns[column]
    assert (told.asked, told.column.kind) == (rule, kind)
    assert f"column {column} " in warnings_of_engram.text
    assert str(cell) in warnings_of_engram.text
    told_cells = rule == "codes" and len(rows) >= 5  # least-count
    assert (str(cell) in site.told().told()) is told_cells
    if not told.choices:
        return
    site.says("policy.toml", least_count=5)
    (tmp_path / "schema.toml").write_text(told.choices[0])
    told = site.told().columns[column]
    assert (told.asked, told.column.kind) == ("", kind)
    if rule == "codes":
        there = wards().drop(index=[*rows, 3, 4]).age
        assert told.median == pytest.approx(there.median(), abs=0.2)
        assert told.missing == len(rows)  # and those that were missing lie among them


def test_what_is_mended_is_asked_about_no_more(tmp_path):
    frame = wards().astype({"age": object})
    frame.loc[5, "age"] = "Miller"
    site = Site(tmp_path, frame)
    told = site.told()
    assert told.columns["age"].asked == "mixed"
    frame.loc[5, "age"] = 60.5  # of one row
    site.write(frame)
    again = site.told()
    assert again.columns["age"] == replace(told.columns["age"], asked="")


def test_a_server_hears_that_a_value_is_lacking_and_the_sites_log_which(
    tmp_path, warnings_of_engram
):
    site = Site(tmp_path)
    expected = "its log names a value of {} that the schema lacks: correct one of them"
    for schema, cell, column in [
        ('columns.ward = {kind = "category", values = ["north", "south"]}', "'rare' in", "ward"),
        ('columns.name = {kind = "number"}', "'Miller 0' in row 2", "name"),
    ]:
        (tmp_path / "schema.toml").write_text(schema)
        with entry(column):
            told = f"this node's data cannot be used: {expected.format(column)}"
            assert site.refusal() == told
            assert cell in warnings_of_engram.text
            assert site.rounds == 0
    (tmp_path / "schema.toml").unlink()
    given = {"target_column": "died", "input_columns": "ward", "num_clients": 1}
    given |= {"clients_per_round": 1, "schema": declared_values(ward="north|south")}
    told = refusal(site.run(**given))  # a run, of its own schema
    assert told == f"this node's data cannot be used: {expected.format('ward')}"
    assert "got 'rare' in row 9" in warnings_of_engram.text


def test_a_wrong_schema_is_refused_in_one_line(tmp_path):
    for text, says in [
        ("age = 3", r"age must be columns or file"),
        ("[columns.age]\nmean = 3", r"columns\.age has an unknown entry mean.*"),
        ('[columns.age]\nkind = "text!"', r"columns\.age\.kind must be '', 'number', .*"),
        ('[columns.age]\nvalues = "a"', r"columns\.age\.values must be a list, got 'a'"),
        ("[age", r".* is not TOML: .*"),
    ]:
        with entry(text, says):
            (tmp_path / "schema.toml").write_text(text)
            with pytest.raises(Refused, match=f"^.*{says}$"):
                site_schema(tmp_path)


# --- How many rows are behind it -------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(8, 120))
def test_whatever_is_told_is_of_enough_rows_on_either_side(tmp_path_factory, seed, least, rows):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "ward": rng.choice(["a", "b", "c", "d"], rows, p=[0.6, 0.3, 0.07, 0.03]),
            "grade": rng.choice([0, 1, 2, 7], rows, p=[0.6, 0.3, 0.07, 0.03]),
            "size": rng.normal(size=rows),
            "rare": np.where(rng.random(rows) < 0.05, 10**9 + rng.random(rows), 0.0),
        }
    ).astype(object)
    frame = frame.mask(rng.random(frame.shape) < rng.choice([0.0, 0.05, 0.9], frame.shape[1]))
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    frame.to_csv(path, index=False)
    table, hashes, _ = describe_table(Source(f"csv:{path}"), Schema(), path.parent, least)
    assert (table.rows, len(hashes)) == (rows, rows)
    for name, column in table.columns.items():
        cells = frame[name].dropna()
        counts = {str(value): n for value, n in cells.value_counts().items()}
        missing = rows - len(cells)
        assert column.missing == (missing if least <= min(missing, len(cells)) else None)
        if len(cells) < least:
            assert column.column.kind == ""
        elif name == "ward":
            assert column.column.kind == "category"
        if name in ("ward", "grade") and len(cells) >= max(least, 8):
            assert column.column.values == tuple(v for v in sorted(counts) if counts[v] >= least)
        if column.low is None:
            assert name == "ward" or len(cells) < 10 * least
            continue
        numbers = cells.astype(float).sort_values()
        low, median, high = numbers.quantile([0.1, 0.5, 0.9])
        spread = high - low or numbers.std()
        within = spread / 200 + 1e-9 * abs(numbers).max()  # half of a hundredth
        figures = [column.low, column.median, column.high]
        assert figures == pytest.approx([low, median, high], abs=within)
        apart = sorted(abs(numbers - median), reverse=True)
        for figure, exact, parts in (
            (column.mean, numbers.mean(), apart),
            (column.deviation, numbers.std(), [part**2 for part in apart]),
        ):
            assert figure is None or figure == pytest.approx(exact, abs=within)
            share = sum(parts[: least - 1]) / (sum(parts) or 1)
            assert (share > 0.5) == (figure is None) or share == pytest.approx(0.5)
        if column.counts:
            ends = [-np.inf, *column.edges, np.inf]
            exact = pd.cut(numbers, ends, right=False).value_counts(sort=False)
            assert list(column.counts) == exact.tolist()
            assert min(column.counts) >= least
    few = pd.Series(frame["rare"].dropna().astype(float) > 0).sum()
    if 0 < few < least:  # the mean would be theirs alone
        assert table.columns["rare"].mean is None


def test_least_count_is_five_and_a_table_of_fewer_rows_is_not_described(tmp_path):
    site = Site(tmp_path, pd.DataFrame({"ward": ["a"] * 4, "y": [0, 1, 0, 1]}))
    assert site.refusal() == "this node's data cannot be used: its log says why"
    site.write(pd.DataFrame({"ward": ["a"] * 5 + ["b"] * 4, "y": [0] * 9}))
    assert site.told().columns["ward"].column.values == ("a",)
    site.says("policy.toml", least_count=4)
    assert site.told().columns["ward"].column.values == ("a",)  # no row has changed
    site.write(pd.DataFrame({"ward": ["a"] * 5 + ["b"] * 8, "y": [0] * 13}))
    assert site.told().columns["ward"].column.values == ("a", "b")


# --- How often -------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 2, 5])
def test_nothing_new_is_told_before_enough_rows_have_changed(tmp_path, least):
    rng, frame = np.random.default_rng(least), wards(200)
    site = Site(tmp_path, frame)
    site.says("policy.toml", least_count=least)
    (tmp_path / "fresh").mkdir()
    last, base, rounds = site.told(), frame.copy(), 1
    for _ in range(12):
        frame = frame.sample(frac=1, random_state=int(rng.integers(100))).reset_index(drop=True)
        some = rng.choice(200, int(rng.integers(0, 3)), replace=False)
        frame.loc[some, "age"] = rng.integers(1, 99, len(some)).astype(float)
        site.write(frame)
        before = base.fillna(-1).apply(tuple, axis=1).value_counts()
        after = frame.fillna(-1).apply(tuple, axis=1).value_counts()
        changed = int(after.sub(before, fill_value=0).clip(lower=0).sum())
        told = site.told()
        if changed < least:
            assert told == last
        else:
            source = Source(f"csv:{site.table}")
            assert told == describe_table(source, Schema(), tmp_path, least).table
            rounds, base = rounds + (told != last), frame.copy()
        assert site.rounds == rounds
        last = told


def test_a_row_that_changes_a_columns_type_is_one_row(tmp_path):
    frame = wards().assign(count=range(60))
    site = Site(tmp_path, frame)
    last = site.told()
    frame["count"] = frame["count"].astype(object)
    frame.loc[2, "count"] = None  # pandas reads 2 as 2.0 now
    site.write(frame)
    assert site.told() == last
    site.write(frame.iloc[:-3])
    assert site.told() == last  # four rows
    site.write(frame.iloc[:-4])
    assert site.told().rows == 56


def test_what_a_person_writes_is_told_at_once_and_figures_are_not(tmp_path):
    site, frame = Site(tmp_path), wards()
    figures = site.told()
    frame.loc[:3, "age"] = 99.0
    site.write(frame)
    (tmp_path / "schema.toml").write_text('columns.age = {kind = "number", unit = "years"}')
    told = site.told()
    assert (told.columns["age"].column.unit, site.rounds) == ("years", 1)
    assert told.columns["age"].median == figures.columns["age"].median
    site.says("policy.toml", secure=3)
    assert site.told().columns.keys() == {"age"}
    (tmp_path / "policy.toml").unlink()
    keep_policy(tmp_path, tmp_path / "state", accept=True)
    assert site.told() == told
    assert site.rounds == 1


def test_a_policy_that_asks_for_more_rows_is_heeded_at_once(tmp_path):
    site = Site(tmp_path)
    site.says("policy.toml", least_count=1)
    assert "rare" in site.told().columns["ward"].column.values
    site.says("policy.toml", least_count=5)
    assert site.told().columns["ward"].column.values == ("north", "south")


def test_what_was_told_last_is_sealed_and_not_forgotten_by_accident(tmp_path, warnings_of_engram):
    new_key(tmp_path / "key")
    site = Site(tmp_path, **{"memory-key": str(tmp_path / "key")})
    told = site.told()
    path = tmp_path / "state" / "described"
    assert b"north" not in path.read_bytes()
    assert site.told() == told
    path.write_bytes(path.read_bytes()[:-1])
    assert site.refusal() == "this node's data cannot be used: its log says why"
    assert "described: it is damaged, or encrypted with another key" in warnings_of_engram.text


# --- What a policy lets leave ----------------------------------------------------------------


@pytest.mark.parametrize("rules", SECRET)
def test_where_answers_need_noise_or_company_only_the_written_schema_is_told(tmp_path, rules):
    site = Site(tmp_path)
    site.says("policy.toml", **rules)
    assert "lets no figure of its rows leave" in site.refusal()
    schema = 'columns.ward = {kind = "category", values = ["north", "east"]}\n'
    schema += 'columns.age = {kind = "number", unit = "years", missing = ["-99"]}\n'
    (tmp_path / "schema.toml").write_text(schema)
    told = site.told()
    site.table.write_text("nothing,of,the,kind\n")
    assert site.told() == told
    assert told.rows == 0
    assert json.loads(told.told())["columns"] == [
        {"column": {"name": "ward", "kind": "category", "values": ["north", "east"]}},
        {"column": {"name": "age", "kind": "number", "unit": "years"}},
    ]


def test_hours_and_rounds_of_a_day_hold(tmp_path, monkeypatch):
    site = Site(tmp_path)
    site.says("policy.toml", rounds_a_day=1)
    site.told()
    assert "rounds a day must be at most 1, and 1 were today" in site.refusal()
    for each in (module, audit_module):
        monkeypatch.setattr(each, "now", lambda: NOON + timedelta(days=1))
    site.told()
    site.told()  # as yesterday
    site.says("policy.toml", hours="20:00-06:00")
    assert "hours are 20:00-06:00 UTC, and it is 12:00" in site.refusal()


def test_each_answer_waits_for_approval(tmp_path):
    site, frame, place = Site(tmp_path), wards(), tmp_path / "state" / "approvals"
    site.says("policy.toml", approval=True)
    for _ in range(2):
        assert site.ask().error.code == AWAITED
    assert (site.rounds, (tmp_path / "state" / "described").exists()) == (0, False)
    (asked,) = requests(place)
    answer(place, asked.terms, "approved")
    told = site.told()
    assert DescribedTable.from_json(asked.settings["table"]) == told  # all of it was shown
    frame.loc[:3, "age"] = 99.0
    site.write(frame)
    assert site.told() == told  # that is approved
    frame.loc[:10, "age"] = 99.0
    site.write(frame)
    assert site.ask().error.code == AWAITED
    (asked,) = [one for one in requests(place) if not one.answer]
    answer(place, asked.terms, "refused")
    assert "refused" in site.refusal()


def test_a_node_that_cannot_keep_what_it_told_tells_nothing(tmp_path):
    site = Site(tmp_path)
    del site.config["state"]
    assert site.refusal().startswith("this node has no table of its own")


# --- Who can read it -------------------------------------------------------------------------


def test_only_the_one_who_asks_can_read_an_answer(tmp_path):
    reply = Site(tmp_path).ask()
    assert b"north" not in b"".join(to_parts(reply.content))
    letter = read_entry(reply.content).table
    assert DescribedTable.opened(letter, PRIVATE).rows == 60
    for private, text in ((bytes(32), letter), (PRIVATE, letter[:-1]), (PRIVATE, b"short")):
        with pytest.raises(ValueError, match=r"it is damaged|32 bytes"):
            DescribedTable.opened(text, private)


def test_a_question_without_a_key_or_of_another_kind_is_refused(tmp_path):
    site = Site(tmp_path)
    for key in [True, "x", bytes(32), b"x" * 31]:
        with entry(key):
            assert site.refusal(key=key).startswith("columns must be a public key")
    assert site.refusal(kind=SECURE_QUERY).startswith("columns must be asked for by a")
    assert (site.rounds, (tmp_path / "state" / "described").exists()) == (0, False)


# --- What a run's own questions tell ---------------------------------------------------------


@pytest.mark.parametrize("rules", SECRET, ids=str)
def test_no_run_asks_for_cells_where_no_figure_may_leave(tmp_path, rules):
    """Refused or not, a roster tells by nothing whether a text or number is in the table."""
    site = Site(tmp_path)
    site.says("policy.toml", **rules)
    protected = {"clip": 0.3, "target_column": "died"}
    if "secure" in rules:
        protected |= {"method": "fedavg", "aggregation": "secure"}
    else:
        protected |= {"privacy": rules["privacy"][0], "noise_multiplier": 8.0}

    def said(**settings):
        reply = site.run(**protected | settings)
        return reply.error.reason if reply.error else ""

    for there, absent in (("north", "nowhere"), ("0", "77"), ("40", "123456")):
        told = {said(schema=f'file.missing = ["{text}"]') for text in (there, absent)}
        assert len(told) == 1
        assert "missing of a schema must be among those in the site's schema.toml" in told.pop()
    told = {said(schema=declared_values(ward=values)) for values in ("north|south", "a|b")}
    assert len(told) == 1
    assert "values of 'ward' must include those in the site's schema.toml" in told.pop()
    for line, word in (('missing = ["40"]', "missing of"), ('values = ["40"]', "values of")):
        assert word in said(schema=f"columns.age = {{{line}}}")
    told = {said(schema=f'columns.age = {{missing = ["{cell}"]}}') for cell in ("40", "41")}
    assert len(told) == 1
    written = 'columns.ward = {values = ["north", "south"], missing = ["?"]}\n'
    (tmp_path / "schema.toml").write_text(written)
    missing = 'file.missing = ["?"]\n'
    assert "schema.toml" not in said(schema=missing + declared_values(ward="north|south|west"))
    assert "values of 'ward'" in said(schema=missing + declared_values(ward="north"))
