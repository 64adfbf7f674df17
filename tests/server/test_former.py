"""Runs that start from the last models of a former one."""

import pytest

from engram.data.schema.columns import Kind
from engram.guards.noise import secret_noise
from engram.runs.run import Run
from engram.server.run_start import strategy_of
from engram.settings.errors import Refused
from engram.simulations.engine import simulate
from engram.wire.roster import Roster
from tests.samples import EIGHT, sampled
from tests.support import assert_same, small_of_any


def run(folder, method="fedavg", **change):
    e = small_of_any(method=method, **{"num_rounds": 1, "eval_every": 1} | change)
    results = simulate(e, folder)
    return Run.open(folder), results


def last(record):
    return record.load_checkpoint()


def test_a_run_begins_with_the_models_of_another(tmp_path):
    former, scored = run(tmp_path / "former", num_rounds=2)
    there, _ = run(tmp_path / "there", start_from=str(tmp_path / "former"))
    assert there.rows()[0]["accuracy-common"] == pytest.approx(scored["accuracy-common"], abs=1e-9)
    # It is the third round but for its number, by which rows are drawn.
    assert last(there).model.keys() == last(former).model.keys()
    again, _ = run(tmp_path / "again", start_from=str(tmp_path / "former"), num_rounds=1)
    assert_same(last(again).model, last(there).model)
    initial, _ = run(tmp_path / "initial")
    assert initial.rows()[0]["accuracy-common"] != there.rows()[0]["accuracy-common"]


@pytest.mark.parametrize("method", sampled(["pfedhn", "fedamp", "fedpac"], EIGHT))
def test_what_the_server_keeps_for_each_client_goes_on(tmp_path, method):
    former, _ = run(tmp_path / "former", method, clients_per_round=4)
    there, _ = run(tmp_path / "there", method, start_from=str(tmp_path / "former"), seed=3)
    cohorts = {
        c for record in (former, there) for row in record.rows() for c in row.get("cohort", ())
    }
    known = last(there).state["known"].nonzero().flatten().tolist()
    assert known == sorted(cohorts)


def test_means_of_what_clients_keep_begin_anew():
    e = small_of_any(method="scaffold", num_clients=4)
    strategy = strategy_of(e, Roster(range(4), [10] * 4, Kind("float32[1,8,8]", 10)), secret_noise)
    former = {name: leaf + 1.0 for name, leaf in strategy.init().items()}
    for name, leaf in strategy.start_from(former, {}).items():
        assert_same({name: leaf}, {name: former[name] - float(name.startswith("control/"))})


def test_a_former_run_of_other_models_is_refused_and_nothing_is_written(tmp_path):
    run(tmp_path / "former", hidden="16")
    (tmp_path / "none").mkdir()
    for former, says in (
        ("former", "start-from must be a run of the same network"),
        ("none", "is not the folder of a run"),
    ):
        with pytest.raises(Refused, match=says):
            run(tmp_path / "there", start_from=str(tmp_path / former))
        assert not (tmp_path / "there").exists()
    tables = {"method": "molar", "dataset": "sparse-linear"}
    run(tmp_path / "tables", **tables)
    with pytest.raises(Refused, match="start-from must be empty for a method that trains no"):
        run(tmp_path / "there", **tables, start_from=str(tmp_path / "tables"))
    assert not (tmp_path / "there").exists()
