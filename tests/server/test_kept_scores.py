"""Runs on nodes with tables of their own: columns by name, and scores that sites keep."""

import numpy as np
import pandas as pd
import pytest
import torch

from engram.client.disk_memory import DiskStore
from engram.client.served_slots import read_scored
from engram.runs.run import Run
from engram.server.run import run as run_on
from engram.settings.errors import RunStopped
from tests.server.members import ROWS
from tests.server.nodes import NodesGrid
from tests.support import declared_values, small, small_of_any

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
    return Run.open(folder / "run")


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


def write_sites(folder, target, order):
    """Writes a table of each of three sites; the second one's columns are in this order."""
    rng, found = np.random.default_rng(3), []
    folder.mkdir()
    for site in range(3):
        x = pd.DataFrame(rng.normal([60, 1, 5], [9, 0.3, 2], (40, 3)), columns=["age", "x10", "x9"])
        days = x.age / 10 - x.x10 + 2 * x.x9 + rng.normal(size=40)
        smoker = rng.choice(["no", "yes"], 40)
        x = (
            x.assign(days=days)
            if target == "days"
            else x.assign(smoker=smoker, died=np.where(days > 15, "yes", "no"))
        )
        path = folder / f"site{site}.csv"
        x[sorted(x, reverse=order == "turned") if site == 1 else list(x)].to_csv(path, index=False)
        found.append(f"csv:{path}")
    return found


DIED = {"schema": declared_values(smoker="no|yes", died="no|yes"), "clients_per_round": 3}
CASES = {"fedavg": {"target_column": "died", **DIED}, "molar": {"target_column": "days"}}


@pytest.mark.parametrize("method", CASES)
def test_columns_in_another_order_give_the_same_model(tmp_path, method):
    found = {}
    for name in ("straight", "turned"):
        folder = tmp_path / name
        e = small(method=method, num_clients=3, timeout=5.0, **CASES[method])
        data = write_sites(folder, e.target_column, name)
        run_on(NodesGrid(e, data, folder), e, folder / "run", engine="vectorized")
        record = Run.open(folder / "run")
        rows = record.rows()
        assert [row["absent"] for row in rows if "absent" in row] == [{}] * (rows[-1]["round"])
        names = [column["name"] for column in rows[0]["schema"]["columns"]]
        assert names == ["age", *["smoker"] * (method == "fedavg"), "x9", "x10"]
        found[name] = record.load_checkpoint().model | {
            "scores": torch.tensor(record.results["clients"][SCORE[method]])
        }
    assert found["straight"].keys() == found["turned"].keys()
    torch.testing.assert_close(found["turned"], found["straight"], rtol=0, atol=1e-6)


SCORE = {"fedavg": "loss", "molar": "loss-personal"}
