"""Several that begin at once: each folder has one of them, whole, and no name is picked twice."""

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import count, product
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engram as front
from engram.data.source import Source
from engram.runs.run import Run
from engram.runs.run_places import data_name, new_folder
from engram.runs.writer import RunWriter, Taken
from engram.settings.errors import Refused
from engram.settings.files import locked
from tests.runs.interleaved import interleave
from tests.samples import entry
from tests.support import small

COUNT = 8


def together(act):
    """Calls a function in threads that start at once; returns results, or what was refused."""
    line = threading.Barrier(COUNT)

    def call(number):
        line.wait()
        try:
            return act(number)
        except Refused as error:
            return str(error)

    with ThreadPoolExecutor(COUNT) as pool:
        return list(pool.map(call, range(COUNT)))


def test_one_of_many_records_gets_a_folder(tmp_path):
    def begin(number):
        experiment = small(seed=number)
        return RunWriter.create(tmp_path / "one", experiment, engine="vectorized", training="x")

    found = together(begin)
    (winner,) = (number for number, one in enumerate(found) if isinstance(one, Run))
    assert Run.open(tmp_path / "one").config["settings"]["seed"] == winner
    refused = r"is not empty|is being run by another process"  # still, if the disk is slow
    assert all(re.search(refused, one) for one in found if not isinstance(one, Run))


def test_a_folder_of_others_is_left_as_it_is(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(Refused, match="is not empty"):
        RunWriter.create(tmp_path / "mine", small(), engine="vectorized", training="x")
    with pytest.raises(Refused, match="is there already"), new_folder(tmp_path / "mine", ""):
        pass
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]


def test_names_are_picked_once():
    kept = threading.Barrier(COUNT)

    def pick(number):
        with new_folder(None, "run") as folder:
            kept.wait()
            (folder / str(number)).touch()
        return folder

    found = together(pick)
    assert len(set(found)) == COUNT
    assert all(
        [path.name for path in folder.iterdir()] == [str(n)] for n, folder in enumerate(found)
    )


def test_names_are_of_the_method_the_data_and_the_day():
    with new_folder(None, "ditto-digits") as one, new_folder(None, "ditto-digits") as other:
        day = re.fullmatch(r"ditto-digits-(\d{4}-\d\d-\d\d)", one.name)[1]
        assert date.fromisoformat(day)
        assert re.fullmatch(r"ditto-digits-\d{4}-\d\d-\d\d(-2)?", other.name)
        assert one != other


def test_no_name_is_cut_or_a_digest():
    for dataset, name in [
        (Source("memory:6d98c1", {}), "data"),
        ("csv:place/mine.csv", "mine"),
        (f"csv:{'very-' * 20}long.csv", "csv"),
        ("digits", "digits"),
    ]:
        with entry(dataset, name):
            assert data_name(SimpleNamespace(source=Source.of(dataset))) == name


def take_at(place, inside):
    """Takes a folder for itself, and notes who is in it at the same time."""

    def take(number):
        with new_folder(place, "") as folder:
            inside.append(number)
            assert inside == [number]
            (folder / str(number)).touch()
            inside.remove(number)
        return number

    return take


def alternating(first, second, third):
    """The turns of two calls, the other one's after so many, thrice."""
    return [0] * first + [1] * second + [0] * third + [1] * 500


def test_one_of_two_gets_a_folder_in_whatever_order_they_come(monkeypatch):
    """All orders in which they are interrupted three times at most."""
    for number, turns in enumerate(product(range(13), range(1, 13), range(1, 12))):
        place = Path(str(number))
        place.mkdir()
        take = take_at(place / "out", [])
        winners = interleave(monkeypatch, take, 2, alternating(*turns))
        assert len(winners) == 1, turns
        assert [path.name for path in (place / "out").iterdir()] == [str(winners[0])], turns


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=st.lists(st.integers(0, 2), max_size=90))
def test_one_of_three_gets_a_folder_whose_parents_are_made_too(monkeypatch, schedule):
    place = Path(mkdtemp(dir=".")) / "deep" / "er" / "out"
    winners = interleave(monkeypatch, take_at(place, []), 3, schedule)
    assert len(winners) == 1
    assert [path.name for path in place.iterdir()] == [str(winners[0])]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=st.lists(st.integers(0, 2), max_size=90))
def test_of_three_that_begin_nothing_one_at_a_time_has_the_folder(monkeypatch, schedule):
    inside, place = [], Path(mkdtemp(dir=".")) / "deep" / "out"

    def begin_nothing(number):
        with new_folder(place, "") as folder:
            inside.append(number)
            assert folder.is_dir()
            assert inside == [number]
            inside.remove(number)
        return number

    winners = interleave(monkeypatch, begin_nothing, 3, schedule)
    assert winners


def test_who_comes_late_removes_nothing_of_the_first(monkeypatch):
    """The late one has looked before the first one has made the folder."""
    with new_folder(Path("out/new"), "") as folder:
        with monkeypatch.context() as before:
            before.setattr(os.path, "lexists", lambda path: path == Path())
            with pytest.raises(Refused, match="in use"), new_folder(Path("out/new"), ""):
                pass
        assert folder.is_dir()


def test_what_stays_empty_is_removed_if_it_was_made():
    Path("there").mkdir()
    for name in ("deep/er/out", "there", "there/new"):
        with new_folder(Path(name), "") as folder:
            assert folder.is_dir()
    with pytest.raises(KeyError), new_folder(None, "run"):
        raise KeyError
    assert [path.name for path in Path().iterdir()] == ["there"]
    assert not list(Path("there").iterdir())


def test_a_folder_in_use_is_refused_and_left_empty(engram):
    Path("out").mkdir()
    told = "engram: out is in use by a process: give out another folder\n"
    for words in [
        ("run", "fedavg"),
        ("compare", "fedavg", "--seeds", "1"),
        ("tune", "fedavg", "--trials", "1", "--seeds", "1"),
        ("reproduce", "universal"),
    ]:
        with entry(words), locked(Path("out"), folder=True):
            status, _, err = engram(*words, "--out", "out")
            assert (status, err) == (2, told)
            assert not list(Path("out").iterdir())


def test_a_run_is_resumed_by_one(monkeypatch):
    run = front.simulate(method="fedavg", num_rounds=1, hidden="4", progress=False)
    before = (run.folder / "config.json").read_bytes()
    clock = SimpleNamespace(monotonic=count(0, 10).__next__, sleep=lambda seconds: None)
    monkeypatch.setattr("engram.runs.writer.time", clock)  # whose patience is over at once
    record = RunWriter.open(run.folder)
    with record.hold(), pytest.raises(Taken, match="is being run by another process at this"):
        front.simulate(resume=run.folder, num_rounds=2, progress=False)
    assert not record.held
    assert (run.folder / "config.json").read_bytes() == before
    assert front.simulate(resume=run.folder, num_rounds=2, progress=False).results["rounds"] == 2
