"""Arguments beside settings: what they may be is one question, whoever asks it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import engram as library
from engram.arguments import overrides_of
from engram.settings.errors import Refused
from tests.cli.words import let
from tests.samples import entry


@pytest.fixture
def rows(tmp_path):
    """Settings of a run that takes little time."""
    x, y = np.eye(4, dtype=np.float32).repeat(20, 0), np.tile([0, 1], 40)
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    sizes = {"num_clients": 4, "clients_per_round": 4, "num_rounds": 1, "hidden": "4"}
    return sizes | {"dataset": "npz:rows.npz", "partition": "iid"}


def in_python(command, **given):
    """Calls a front door on the default data; returns what it refuses."""
    named = {"run": {"method": "fedavg"}}.get(command, {"methods": "fedavg"})
    function = {"run": "simulate"}.get(command, command)
    with pytest.raises(Refused) as caught:
        getattr(library, function)(**named | {"progress": False} | given)
    return str(caught.value)


def test_python_and_the_command_line_refuse_alike(engram):
    Path("full").mkdir()
    Path("full/thesis.tex").touch()
    for command, given, message in [
        ("run", {"engine": "ray"}, "engine must be vectorized or sequential (Ray runs what"),
        ("run", {"resume": "nowhere"}, "no run nowhere: it is neither a folder nor a name in"),
        ("run", {"resume": "full", "out": "new"}, "out and resume exclude each other"),
        (
            "run",
            {"engine": "warp", "out": "full", "eta": -1, "seed": -2},
            "engine must be vectorized or sequential, got warp; full is there already: give out "
            "another folder, or resume it; seed must be greater than or equal to 0, got -2; "
            "fedavg.eta must be greater than 0, got -1",
        ),
        ("compare", {"seeds": 1001}, "seeds must be less than or equal to 1000, got 1001"),
        ("compare", {"seeds": "x"}, "seeds must be a valid integer"),
        (
            "compare",
            {"engine": "warp", "seeds": 0, "out": "full", "eta": -1},
            "engine must be vectorized or sequential, got warp; seeds must be greater than or "
            "equal to 1, got 0; full is there already",
        ),
        ("tune", {"trials": 0.5}, "trials must be a valid integer"),
        ("tune", {"trials": 100001}, "trials must be less than or equal to 100000, got 100001"),
        ("tune", {"minutes": -1}, "minutes must be greater than or equal to 0, got -1"),
        ("tune", {"minutes": "nan"}, "minutes must be a finite number, got nan"),
        ("tune", {"search": "eta"}, "search must be KEY=LOW..HIGH"),
        ("tune", {"search": "eta=0..1"}, "search eta=0..1: fedavg.eta must be greater than 0"),
        ("tune", {"out": "full"}, "full is there already: give out another folder, or resume it"),
        ("tune", {"ray": "127.0.0.1:1"}, "ray must be the address of a cluster that answers"),
        (
            "tune",
            {"trials": 0, "seeds": 0, "minutes": -1, "eta": -1},
            "seeds must be greater than or equal to 1, got 0; trials must be greater than or equal "
            "to 1, got 0; minutes must be greater than or equal to 0, got -1; fedavg.eta must be",
        ),
    ]:
        with entry(command, given):
            arguments = ("engine", "out", "resume", "seeds", "trials", "minutes", "search", "ray")
            words = []
            for key, value in given.items():
                words += [f"--{key}", value] if key in arguments else let(f"{key}={value}")
            status, out, err = engram(command, "fedavg", *words)
            assert (status, out) == (2, "")
            told = in_python(command, **given).replace("'", "")
            assert told.startswith(message)
            assert err.removeprefix("engram: ").replace("--", "").replace("'", "") == told + "\n"
            assert [str(path) for path in Path().rglob("*")] == ["full", "full/thesis.tex"]


def test_types_that_only_python_has_are_refused():
    for command, given, message in [
        ("run", {"engine": 3}, "engine must be vectorized or sequential, got 3"),
        ("run", {"out": 5}, "out must be a path, got 5"),
        ("run", {"resume": 5}, "resume must be a path, got 5"),
        ("run", {"method": ["fedavg"]}, r"method must be one of .*, got \['fedavg'\]"),
        ("run", {"method": 0}, "method must be one of .*, got 0"),
        ("run", {"progress": "no"}, "progress must be a valid boolean, got 'no'"),
        ("compare", {"seeds": True}, "seeds must be a number, got True"),
        ("compare", {"seeds": None}, "seeds must be a valid integer, got None"),
        ("tune", {"search": 5}, "search must be text, or a list of texts, got 5"),
        ("tune", {"ray": 5}, "ray must be a valid string, got 5"),
    ]:
        with entry(command, given):
            assert re.match(message, in_python(command, **given))
            assert not list(Path().iterdir())


def test_what_a_run_gives_is_asked_for_alike(engram, rows):
    library.simulate(**rows, method="fedavg", out="run", progress=False)
    run = library.load_run("run")
    for call, words in (
        (lambda: run.export(9, out="run", format="gif"), ["--client", 9, "--out", "run"]),
        (lambda: run.export("nobody", format="gif"), ["--client", "nobody"]),
    ):
        with pytest.raises(Refused) as caught:
            call()
        err = engram("export", "run", *words, "--format", "gif")[2]
        assert err.replace("'", "") == f"engram: {caught.value}\n".replace("'", "")
        assert "format must be one of" in err
        assert "client must be" in err
    for bad in (True, 1.0, None, [1]):
        with pytest.raises(Refused, match=r"client must be in 0\.\.3, got"):
            run.personal_model(bad)
    assert run.personal_model(np.int64(1)).keys() == run.personal_model(1).keys()
    for call, message in (
        (lambda: run.export(out=5), "out must be a path, got 5"),
        (lambda: run.adapt(5), "data must be a path, got 5"),
        (lambda: library.load_run(5), "run must be a path, got 5"),
        (lambda: library.load_model(5), "folder must be a path, got 5"),
        (lambda: run.plot("etta"), "metric must be one of"),
    ):
        with pytest.raises(Refused, match=message):
            call()


def test_the_engine_that_is_accepted_is_recorded(engram, rows):
    sets = let(*(f"{key}={value}".replace("_", "-") for key, value in rows.items()))
    assert engram("run", "fedavg", *sets, "--engine", "sequential", "--out", "one")[0] == 0
    given = {"engine": "sequential", "out": Path("two")}
    library.simulate(**rows, method="fedavg", progress=False, **given)
    engines = [json.loads(Path(run, "config.json").read_text())["engine"] for run in ("one", "two")]
    assert engines == ["sequential"] * 2


def test_quotes_around_a_value_are_taken_off_and_others_stay():
    lines = ['schema=file.encoding = "cp1252"', "method='ditto'", 'model="cnn"', "eta='"]
    values = ['file.encoding = "cp1252"', "ditto", "cnn", "'"]
    assert [*overrides_of(None, lines).values()] == values
