"""Sites that keep scores to themselves: they train, keep what serves them, and send no scores."""

import numpy as np
import pytest

from engram.client.disk_memory import DiskStore
from engram.client.served_slots import read_scored
from engram.runs.record import RunRecord
from engram.server.run import run as run_on
from engram.settings.errors import RunStopped
from tests.server.members import ROWS
from tests.server.nodes import NodesGrid
from tests.support import small_of_any

SITES = 3


def run(folder, silent, method="ditto", **change):
    """The record of a run, whose first sites keep their scores."""
    given = {"num_clients": SITES, "clients_per_round": SITES, "dataset": ROWS}
    given |= {"partition": "natural", "timeout": 5.0}
    e = small_of_any(method=method, **given | change)
    for node in range(1, silent + 1):
        home = folder / f"node-{node}"
        home.mkdir(parents=True)
        (home / "policy.toml").write_text("evaluate = false\n")
    run_on(NodesGrid(e, [ROWS] * SITES, folder), e, folder / "run", engine="flower")
    return RunRecord.open(folder / "run")


def test_scores_are_those_of_the_others_and_models_are_those_of_all(tmp_path, warnings_of_engram):
    open_, kept = run(tmp_path / "open", 0), run(tmp_path / "kept", 1)
    for one, other in zip(open_.rows()[1:], kept.rows()[1:], strict=True):
        assert (other["clients"], other["left-out"]) == (one["clients"], one["left-out"])
    told, all_told = kept.results, open_.results
    assert told["clients"]["ids"] == [0, 1, 2]
    for name in ("accuracy", "loss", "validation-accuracy"):
        assert told["clients"][name] == [None, *all_told["clients"][name][1:]]
        known = np.mean(all_told["clients"][name][1:])
        assert told[name] == pytest.approx(known)
    assert warnings_of_engram.text.count("clients [0] keep their scores") == 1
    assert "not finite" not in warnings_of_engram.text
    one, other = open_.load_checkpoint(), kept.load_checkpoint()
    assert all(np.array_equal(one.model[name], leaf) for name, leaf in other.model.items())


def test_a_run_ends_though_nobody_tells_a_score(tmp_path):
    found = run(tmp_path, SITES).results
    assert found["clients"]["accuracy"] == [None] * SITES
    assert found["accuracy"] is None
    assert found["rounds"] == 4


def test_a_site_that_tells_no_score_takes_its_model_home(tmp_path):
    run(tmp_path / "open", 0, "fedavg")
    run(tmp_path / "kept", SITES, "fedavg")
    for node in (1, 3):
        stores = [
            next((tmp_path / name / f"node-{node}" / "memory").glob("*"))
            for name in ("open", "kept")
        ]
        one, other = (read_scored(DiskStore(store), node - 1) for store in stores)
        assert other.server_round == one.server_round == 4
        assert one.received.keys() == other.received.keys()


def test_estimates_of_tables_are_not_scored_without_telling(tmp_path, warnings_of_engram):
    with pytest.raises(RunStopped, match="no site has replied to the shared estimate"):
        run(tmp_path, SITES, "molar", task="regression")
    assert "scores of its rows are not sent" in warnings_of_engram.text
