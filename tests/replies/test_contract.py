"""Whatever stands in any field of a site's replies: it ends no run in which enough others are well.

The fields are those of honest replies, which every test records first, so that a new field, method
or family is in the table without being listed. `make test` tries every twelfth value, of methods
that an engine can tell apart, and `make test-all` all values of all methods.
"""

import math
import re
import shutil

import pytest
import torch

from engram.link.records import from_contents, to_parts
from engram.server.roster import attendance_of
from engram.settings.families import METHODS, family
from engram.strategies.running.base import STRATEGIES
from tests.replies.federations import federations, grid_of, run, settings_of
from tests.replies.fields import Field, fields_of, others, spoiled
from tests.samples import EIGHT, sampled
from tests.server.pushed import patient
from tests.support import check_lines

LIARS = (0, 2, 3, 5, 6, 7, 8)  # 3 of 10 sites are well, and as many are needed
# Replies that differ in some fields from those of another federation: the others are not repeated.
LIKE = {"targets": "classes", "adaptive": "tables", "exchanges": "tables"}
FAMILIES = ["classes", "targets", "tables", "adaptive", "exchanges", "bandit", "meta"]
pytestmark = pytest.mark.filterwarnings("error")  # nothing overflows, nothing is guessed at


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """The settings of every family's federation."""
    return federations(tmp_path_factory.mktemp("data"))


def honest(folder, settings):
    """Returns the fields of a federation's replies and their values, by kind of reply."""
    found = {}

    def look(kind, client, content):
        for field, value in fields_of(content).items():
            found.setdefault((kind, field), value)
        return content

    run(folder, look, **settings)
    return found


every = pytest.mark.parametrize("part", sampled(["sample", "rest"], ["sample"]))


def cases_of(fields):
    return [(kind, field, how) for (kind, field), value in fields.items() for how in others(value)]


def part_of(cases, part):
    return [case for i, case in enumerate(cases) if (i % 12 == 0) == (part == "sample")]


def check(folder, settings, cases, liars=LIARS):
    """Runs the federation until each case was tried, each by another site than its neighbors."""
    runs = -(-len(cases) // len(liars))
    for i in range(runs):
        told = dict(zip(liars, cases[i::runs], strict=False))

        def change(kind, client, content, told=told):
            wanted, field, how = told.get(client, ("", Field(""), ""))
            return spoiled(content, field, how) if kind == wanted else content

        try:
            found, rows = run(folder / f"{i}", change, **settings)
        except Exception as error:
            pytest.fail(f"{told} end the run: {error!r}")
        absent = {c: why for row in rows for c, why in row.get("absent", {}).items()}
        well = {c: why for c, why in absent.items() if int(c) not in told}
        assert all("claim the same turn" in why for why in well.values()), (told, well)
        assert found["rounds"] == rows[-1]["round"]
        shutil.rmtree(folder / f"{i}")


@every
@pytest.mark.parametrize("name", FAMILIES)
def test_no_field_of_a_sites_replies_ends_the_run_of_the_others(name, part, given, tmp_path, lines):
    fields = honest(tmp_path / "honest", given[name])
    if name in LIKE:
        there = honest(tmp_path / "like", given[LIKE[name]])
        fields = {
            at: v for at, v in fields.items() if at not in there or isinstance(v, torch.Tensor)
        }
    check(tmp_path, given[name], part_of(cases_of(fields), part))
    check_lines(lines, 2500)


# What merges a round's replies beside the mean.
MERGES = {
    "optimizer": {"method": "fedyogi"},
    "universal": {"server_step": "universal"},
    "median": {"merge": "median"},
    "krum": {"merge": "krum", "num_malicious": 3},
    "trimmed mean": {"merge": "trimmed-mean", "num_malicious": 3},
    "privacy": {"privacy": "central", "clip": 1.0, "noise_multiplier": 1.0},
}


@every
@pytest.mark.parametrize(
    "name", sampled([*family("local"), *MERGES, "images"], [*EIGHT, *MERGES, "images"])
)
def test_no_array_of_a_sites_update_ends_the_run_of_the_others(name, part, given, tmp_path):
    norm = METHODS[name].personal == "norm" if name in METHODS else name == "images"
    settings = given["images" if norm else "classes"] | MERGES.get(name, {})
    settings |= {"method": name} if name in METHODS else {}
    fields = honest(tmp_path / "honest", settings)
    arrays = {at: v for at, v in fields.items() if at[0] == "train" and isinstance(v, torch.Tensor)}
    each = {stem(field.key): ((kind, field), v) for (kind, field), v in arrays.items()}
    if name in METHODS and each.keys() <= {"model/dense", "model/conv"}:
        return  # its update is a model, as that of FedAvg, which the table above has
    # Shapes and types are looked at before it matters how replies are merged.
    cases = [case for case in cases_of(dict(each.values())) if case[2].startswith(("all", "neg"))]
    check(tmp_path, settings, part_of(cases, part), liars=(0, 3, 7))


def stem(name):
    """Returns the kind of an array: its name without numbers, and parameters but for statistics."""
    return re.sub(r"\d|\.(weight|bias)$", "", name)


@pytest.mark.parametrize("name", ["classes", "tables"])
def test_of_two_kinds_of_data_the_run_takes_a_possible_one(name, given, tmp_path):
    """Of two sites, the first lies about its data: by its number it would be the usual one."""
    e = settings_of(**given[name] | {"min_clients": 1})
    fields = honest(tmp_path / "honest", given[name])
    claims = ("inputs", "outputs", "classes", "schema")
    kinds = {at: v for at, v in fields.items() if at[0] == "query.roster" and at[1].key in claims}
    for _, field, how in cases_of(kinds):

        def change(kind, client, content, field=field, how=how):
            return content if client > 1 else None if client else spoiled(content, field, how)

        attendance = attendance_of(grid_of(e, change), e, training="", kind=None)
        attendance.wait(1)
        STRATEGIES[e.own.plug_in].build(e, attendance.roster(), None)


def test_no_answer_to_the_roster_query_keeps_others_from_beginning(given, tmp_path):
    """Answers that come as bytes, as over a network, and through the grid that waits for nodes."""
    e = settings_of(**given["targets"])
    fields = honest(tmp_path / "honest", given["targets"])
    cases = cases_of({at: v for at, v in fields.items() if at[0] == "query.roster"})
    runs = -(-len(cases) // len(LIARS))
    for i in range(runs):
        told = dict(zip(LIARS, cases[i::runs], strict=False))

        def change(kind, client, content, told=told):
            _, field, how = told.get(client, ("", Field(""), ""))
            try:
                parts = to_parts(spoiled(content, field, how))
            except ValueError:  # what cannot be sent
                return content
            return from_contents([b"".join(parts)], math.inf)

        attendance = attendance_of(patient(grid_of(e, change)), e, training="", kind=None)
        attendance.wait(3)
        nodes = attendance.roster().nodes
        assert all(node == c + 1 for c, node in enumerate(nodes) if c not in told)


LOST = {"query.roster": "roster", "train": "clients", "evaluate": "clients"}


@pytest.mark.parametrize("kind", ["query.roster", "train", "evaluate"])
@pytest.mark.parametrize("name", ["classes", "tables", "adaptive", "bandit", "meta"])
def test_the_others_get_what_they_get_where_the_site_says_nothing(name, kind, given, tmp_path):
    found = []
    for lost in (True, False):

        def change(at, client, content, lost=lost):
            if client != 4 or not at.startswith(kind):
                return content
            return None if lost else spoiled(content, Field(LOST[kind]), "missing")

        results, rows = run(tmp_path / f"{lost}", change, **given[name])
        found.append((numbers(results), [numbers(row) for row in rows]))
    assert found[0] == found[1]


def numbers(row):
    """Returns what a run computes, without times and reasons."""
    named = ("ms", "seconds", "rejected", "absent", "left-out")
    return {key: value for key, value in row.items() if not key.startswith(named)}
