"""Other kinds of nodes: with tables of their own, without a plug-in."""

import numpy as np
import pandas as pd
import pytest

from engram.client.disk_memory import DiskStore
from engram.settings.fingerprint import source_root
from engram.settings.plugins import add_plugins, load_plugins
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
from tests.processes.support import federation_of
from tests.processes.test_federation import CLIENTS, run, settings
from tests.support import write_plug_in
from tests.tables.survival.figures import HERE

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Rows of three hospitals, of which the west's outcome depends on age otherwise: a folder."""
    folder, rng = tmp_path_factory.mktemp("hospitals"), np.random.default_rng(0)
    hospital = np.repeat(["north", "south", "west"], 80)
    x = rng.normal(size=(240, 3))
    y = x @ [1, 2, 3] + 4 * (hospital == "west") * x[:, 0] + rng.normal(size=240)
    frame = pd.DataFrame(x, columns=["age", "dose", "weight"]).assign(hospital=hospital, days=y)
    frame.to_csv(folder / "all.csv", index=False)
    for name, rows in frame.groupby("hospital"):
        rows.to_csv(folder / f"{name}.csv", index=False)
    return folder


def estimates(federation, hospitals, folder, **change):
    """Runs MOLAR on nodes: its estimates are those of one process that has all rows."""
    table = {"target-column": "days", "task-column": "hospital", "num-clients": CLIENTS}
    experiment = settings(method="molar", dataset=f"csv:{hospitals / 'all.csv'}", **table)
    expected = simulate(experiment, folder / "here")
    record = run(federation, experiment.model_copy(update=change), folder / "there")
    found = record.results
    assert (found["sites"], found["left-out"]) == (CLIENTS, {})
    assert found["shared"]["names"] == ["age", "dose", "weight", "intercept"]
    np.testing.assert_allclose(found["shared"]["coef"], expected["shared"]["coef"], rtol=1e-10)
    for column in ("loss-personal", "loss-own", "loss-shared"):
        here, there = expected["clients"][column], found["clients"][column]
        np.testing.assert_allclose(there, here, rtol=1e-10)
    return record


def test_hospitals_exchange_estimates_of_tables_that_stay_with_them(tmp_path, hospitals):
    files = [hospitals / f"{name}.csv" for name in ("north", "south", "west")]
    with federation_of(tmp_path / "fed", files) as federation:  # whose coordinator has no rows
        record = estimates(federation, hospitals, tmp_path, dataset="sparse-linear")
    own = tmp_path / "fed" / "client-2" / "state" / "memory"
    memory = DiskStore(own / record.config["training"]).read(2, 1)
    assert sorted(memory) == ["age", "dose", "intercept", "weight"]
    coef, low, high, alone, shared = memory["age"].tolist()
    assert low < coef < high
    assert coef == alone
    assert abs(coef - 5) < 0.5
    assert abs(shared - 1) < 0.5


def test_hospitals_fit_coxs_model_to_subjects_that_stay_with_them(tmp_path):
    rows, files = pd.read_csv(HERE / "veteran.csv"), [tmp_path / f"{site}.csv" for site in range(3)]
    rows = rows[sorted(rows)]  # as nodes have columns
    for site, path in enumerate(files):
        rows[rows.site == site].drop(columns="site").to_csv(path, index=False)
    rows[rows.site < 3].to_csv(tmp_path / "all.csv", index=False)
    roles = "\n".join(f'columns.{name}.role = "{name}"' for name in ("event", "time", "weight"))
    here = {"dataset": f"csv:{tmp_path / 'all.csv'}", "task-column": "site"}
    experiment = settings(method="cox", schema=roles, **here, **{"num-clients": 3})
    expected = simulate(experiment, tmp_path / "here")
    there = experiment.model_copy(update={"dataset": "digits"})
    with federation_of(tmp_path / "fed", files) as federation:
        record = run(federation, there, tmp_path / "there")
        secure = there.model_copy(update={"aggregation": "secure"})
        summed = run(federation, secure, tmp_path / "secure").results
    found = record.results
    np.testing.assert_allclose(summed["shared"]["coef"], found["shared"]["coef"], rtol=1e-12)
    assert (found["sites"], found["left-out"], found["over"]) == (3, {}, True)
    np.testing.assert_allclose(found["shared"]["coef"], expected["shared"]["coef"], rtol=1e-10)
    pairs = [each["clients"]["pairs"] for each in (found, expected)]
    assert pairs[0] == pairs[1]


def test_a_node_without_the_runs_plug_in_is_left_out_and_named(tmp_path, plug_ins, monkeypatch):
    write_plug_in(tmp_path / "outside.py", "own")
    add_plugins("outside")
    load_plugins()
    two = {"num-clients": 2, "clients-per-round": 2, "min-clients": 1}
    experiment = settings(method="own", **two, **{"num-rounds": 1, "timeout": 20.0})
    with LoopbackFederation(tmp_path / "fed", clients=2) as federation:
        federation.kill("client-1")
        with monkeypatch.context() as patch:
            patch.setenv("ENGRAM_PLUGINS", "")
            federation.start("client-1")
        record = run(federation, experiment, tmp_path / "run")
    (source,) = record.config["sources"]
    ours, _ = source.split(" with plug-in outside ")
    reason = f"this node runs {ours} from {source_root()}, but the server runs {source}"
    assert reason in record.rows()[1]["absent"]["1"]
