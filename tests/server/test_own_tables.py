"""Runs on nodes whose tables are their own: columns go by their names."""

import numpy as np
import pandas as pd
import pytest
import torch

from engram.runs.record import RunRecord
from engram.server.run import run as run_on
from tests.server.nodes import NodesGrid
from tests.support import declared_values, small


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


CASES = {
    "fedavg": {
        "target_column": "died",
        "clients_per_round": 3,
        "schema": declared_values(smoker="no|yes", died="no|yes"),
    },
    "molar": {"target_column": "days"},
}


@pytest.mark.parametrize("method", CASES)
def test_columns_in_another_order_give_the_same_model(tmp_path, method):
    found = {}
    for name in ("straight", "turned"):
        folder = tmp_path / name
        e = small(method=method, num_clients=3, timeout=5.0, **CASES[method])
        data = write_sites(folder, e.target_column, name)
        run_on(NodesGrid(e, data, folder), e, folder / "run", engine="vectorized")
        record = RunRecord.open(folder / "run")
        rows = record.rows()
        assert [row["absent"] for row in rows if "absent" in row] == [{}] * (rows[-1]["round"])
        names = [column["name"] for column in rows[0]["schema"]["columns"]]
        assert names == ["age", *["smoker"] * (method == "fedavg"), "x9", "x10"]
        found[name] = record.load_checkpoint().model | {
            "scores": torch.tensor(record.results["clients"][SCORE[method]])
        }
    assert found["straight"].keys() == found["turned"].keys()
    for key, leaf in found["straight"].items():
        torch.testing.assert_close(found["turned"][key], leaf, rtol=0, atol=1e-6)


SCORE = {"fedavg": "loss", "molar": "loss-personal"}
