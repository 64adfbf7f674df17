"""Trackers read back, by their own readers, what runs have recorded."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engram.runs.run import Run
from engram.runs.writer import RunWriter
from engram.settings import errors
from engram.settings.errors import Refused
from engram.studio.tracking.sending import TRACKERS, check_tracker, follow, send
from tests.cli.words import SETS
from tests.samples import sampled
from tests.support import small

pytestmark = pytest.mark.filterwarnings("ignore")  # the trackers' own


@pytest.fixture(autouse=True)
def _at_home(monkeypatch, tmp_path):
    for name, value in {
        "MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",  # a database takes seconds to set up
        "WANDB_MODE": "offline",
        "WANDB_CONFIG_DIR": str(tmp_path / "config"),
        "WANDB_CACHE_DIR": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)  # where MLflow keeps artifacts


def row(number):
    return {"round": number, "accuracy": number / 8, "loss": None, "train-loss": 1.0 - number / 8}


@pytest.fixture
def record(tmp_path):
    """A run of five rounds, of which the last is not scored."""
    made = RunWriter.create(tmp_path / "run", small(), engine="vectorized", training="a1b2")
    for number in range(5):
        made.append(row(number))
    made.append({"round": 5, "train-loss": 0.375})
    return made


def read(kind, folder):
    """Returns the values of ``train-loss`` that a tracker's reader finds, by step, in order."""
    if kind == "tensorboard":
        found = EventAccumulator(str(folder / "tensorboard")).Reload().Scalars("train-loss")
        return [(one.step, one.value) for one in found]
    if kind == "mlflow":
        from mlflow import MlflowClient

        client = MlflowClient()
        known = client.get_metric_history(of_mlflow(client, folder).info.run_id, "train-loss")
        return [(one.step, one.value) for one in known]
    return [(one["_step"], one["train-loss"]) for one in history(folder) if "train-loss" in one]


def of_mlflow(client, folder):
    """The run, which is there once."""
    experiment = client.get_experiment_by_name("engram").experiment_id
    key = Run.open(folder).config["training"]
    (run,) = client.search_runs([experiment], f"tags.`engram.run` = '{key}'")
    return run


def history(folder):
    """What W&B's files of a run hold, in their order; all belong to the same run."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its own process has written all that it was told when it has ended
    found, ids = [], set()
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for data in chunks(path.read_bytes()):
            one = Record.FromString(data)
            if one.run.run_id:
                ids.add(one.run.run_id)
            if one.history.item:
                items = {"/".join(i.nested_key) or i.key: i.value_json for i in one.history.item}
                found.append({name: json.loads(value) for name, value in items.items()})
    assert ids == {Run.open(folder).config["training"]}
    return found


def chunks(data):
    """The records of a log in LevelDB's format, after W&B's header of seven bytes."""
    whole, place = b"", 7
    while place < len(data):
        left = 32768 - place % 32768  # of the block
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a full record, or the last part of one
            yield whole
            whole = b""


@pytest.mark.parametrize("kind", sampled(TRACKERS, ["tensorboard", "mlflow"]))
def test_a_tracker_has_each_round_once_whatever_happens_to_the_run(kind, record, capfd):
    # A process that is killed has told four rounds, and recorded that three are told.
    with follow(record.folder, kind) as tell:
        lost = record.rows()[4:]
        record.forget_after(3)
        for number in range(4):
            tell(record.rows()[number])
    noted = json.loads((record.folder / "tracked.json").read_text())
    assert noted == {kind: {"round": 3, "finished": False}}
    noted[kind]["round"] = 2
    (record.folder / "tracked.json").write_text(json.dumps(noted))
    for one in lost:
        record.append(one)
    scores = {"ids": [0, 1, 2, 3], "accuracy": [0.25, 0.75, None, 0.125]}
    record.finish({"accuracy": 0.5, "clients": scores, "unseen": [3]})
    assert send(record.folder, kind) == (2 if kind == "mlflow" else 3)  # which knows by itself
    written = files_of(record.folder)
    assert send(record.folder, kind) == 0
    assert files_of(record.folder) == written
    assert "into the W&B run directory" not in capfd.readouterr().err
    told = read(kind, record.folder)
    assert sorted(set(told)) == [(k, 1 - k / 8) for k in range(6)]
    if kind != "wandb":  # whose server takes no step again; its files are two, of one run
        assert len(told) == 6
    CHECKS[kind](record.folder)


def files_of(folder):
    return {path.relative_to(folder) for path in folder.rglob("*")}


def check_tensorboard(folder):
    found = EventAccumulator(str(folder / "tensorboard")).Reload()
    (drawn,) = found.Histograms("clients/accuracy")
    assert (drawn.step, drawn.histogram_value.num, drawn.histogram_value.sum) == (5, 2, 1.0)
    (never,) = found.Histograms("clients/unseen-accuracy")
    assert (never.histogram_value.num, never.histogram_value.sum) == (1, 0.125)


def check_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient()
    run = of_mlflow(client, folder)
    assert run.data.params["method"] == "local-moml"
    assert run.info.status == "FINISHED"
    assert run.data.metrics["results/accuracy"] == 0.5
    kept = {one.path for one in client.list_artifacts(run.info.run_id)}
    assert kept >= {"clients.json", "config.json", "results.json", "clients"}


def check_wandb(folder):
    kept = {path.name for path in (folder / "wandb").glob("offline-run-*/files/*")}
    assert kept >= {"config.json", "results.json"}


CHECKS = {"tensorboard": check_tensorboard, "mlflow": check_mlflow, "wandb": check_wandb}


def test_a_run_goes_on_where_its_tracker_fails(record, monkeypatch, caplog):
    monkeypatch.setitem(TRACKERS, "tensorboard", TRACKERS["mlflow"])  # a class that is not there
    with follow(record.folder, "tensorboard") as tell:
        for one in record.rows():
            tell(one)
    (line,) = [one.getMessage() for one in caplog.records if "told nothing more" in one.message]
    assert line.endswith(f"engram track {record.folder} --to tensorboard sends the rest")
    with pytest.raises(Refused, match=f"tensorboard has not taken {record.folder}: "):
        send(record.folder, "tensorboard")


def test_trackers_that_are_not_known_or_not_there_are_refused(monkeypatch):
    with pytest.raises(Refused, match="one of tensorboard, mlflow, wandb, got 'neptune'"):
        check_tracker("neptune")
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"wandb is not installed: pip install 'engram\[wandb\]'"):
        check_tracker("wandb")


def test_runs_are_tracked_as_they_go_and_later(engram):
    status, _, _ = engram("run", *SETS, "--out", "mine", "--track", "tensorboard")
    assert status == 0
    assert json.loads(Path("mine/tracked.json").read_text())["tensorboard"]["finished"]
    rows = Run.open(Path("mine")).rows()
    assert [step for step, _ in read("tensorboard", Path("mine"))] == [r["round"] for r in rows[1:]]
    assert engram("track", "mine", "--to", "tensorboard")[1] == (
        "mine: 0 rounds sent to tensorboard\n"
    )
    Path("both").mkdir()
    plan = {"engine": "vectorized", "runs": {"one": {"method": "a"}, "two": {"method": "b"}}}
    Path("both/comparison.json").write_text(json.dumps(plan))
    Path("mine").rename("both/one")
    shutil.rmtree("both/one/tensorboard")
    Path("both/one/tracked.json").unlink()
    assert engram("track", "both", "--to", "tensorboard")[1] == (
        f"both/one: {len(rows)} rounds sent to tensorboard\n"
    )
    both = [Path("both") / name for name in plan["runs"]]
    shutil.copytree(*both)
    for folder in both:
        (folder / "tracked.json").unlink()
        shutil.rmtree(folder / "tensorboard")
    (both[1] / "results.json").write_text("{}")
    status, _, err = engram("track", "both", "--to", "tensorboard")
    assert (status, "both/two/results.json is damaged" in err) == (2, True)
    assert not any((folder / "tensorboard").exists() for folder in both)
    shutil.copy(both[0] / "results.json", both[1] / "results.json")
    (both[1] / "metrics.jsonl").unlink()
    os.mkfifo(both[1] / "metrics.jsonl")
    status, _, err = engram("track", "both", "--to", "tensorboard")
    assert (status, "both/two/metrics.jsonl cannot be read" in err) == (2, True)
    assert not any((folder / "tensorboard").exists() for folder in both)
    refused = engram("run", "--track", "neptune")
    assert refused[0] == 2
    assert refused[2].startswith("engram: a tracker must be one of")
