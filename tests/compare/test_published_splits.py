"""``engram benchmark --suite``: published splits, and figures beside the published ones."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engram import simulate
from engram.cli import tune_cli
from engram.compare.suite.federation_rows import written
from engram.compare.suite.federations import Federation, federations
from engram.compare.suite.published_splits import Split, count_rows, deal
from engram.settings.errors import Refused
from tests.samples import entry, sampled

RULES = {"clients": 3, "seed": 1, "train-share": 0.75, "batch-size": 2}
SPLIT = Split.model_validate(RULES | {"class-sizes": [[2, 30], [1, 24]], "classes": 2})
SETTINGS = {"num-clients": 3, "clients-per-round": 3, "num-rounds": 3, "local-epochs": 1}
SETTINGS |= {"batch-size": 10, "eval-every": 1, "validation-fraction": 0.0, "model": "mlp"}


def test_counts_are_those_of_the_generator():
    """The generator's code at the named commit was run on labels of the same class sizes."""
    known = json.loads(Path(__file__).with_name("pfllib_counts.json").read_text())["counts"]
    assert known.keys() == federations("pfllib").keys()
    for name, federation in federations("pfllib").items():
        with entry(name):
            sizes = federation.split.sizes
            y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
            dealt = deal(federation.split, y)
            each = np.sort(np.concatenate([part for parts in dealt for part in parts]))
            assert each.tolist() == list(range(len(y)))
            counts = count_rows(dealt, y, len(sizes)).swapaxes(0, 1).tolist()
            text = json.dumps(counts, separators=(",", ":")).encode()
            assert known[name] in (counts, hashlib.sha256(text).hexdigest())


@pytest.fixture
def small(tmp_path):
    """A federation of a published kind, with two classes for each of three clients."""
    y = np.repeat([0, 1, 2], [30, 30, 24])[np.random.default_rng(0).permutation(84)]
    x = np.arange(84, dtype=np.uint8)[:, None, None].repeat(16, 1).repeat(16, 2)
    arrays = {"x_train": x[:60], "y_train": y[:60], "x_test": x[60:], "y_test": y[60:]}
    np.savez(tmp_path / "rows.npz", **arrays)
    settings = SETTINGS | {"dataset": f"npz:{tmp_path}/rows.npz", "hidden": "4", "eta": 0.1}
    return Federation("squares", settings, split=SPLIT, published={"fedavg": "80.41 ± 0.08"})


def test_rows_are_the_generators(small, tmp_path):
    """By NumPy's global generator, as there: blocks of each class, then a share to test on."""
    settings = written("small", small, tmp_path / "own")
    arrays = np.load(tmp_path / "own" / "small.npz")
    assert settings["dataset"] == f"npz:{tmp_path / 'own' / 'small.npz'}"
    given = np.load(tmp_path / "rows.npz")
    y = np.concatenate([given["y_train"], given["y_test"]])
    np.random.seed(1)
    held = {0: [], 1: [], 2: []}
    for label, (one, other) in enumerate([(0, 1), (0, 1), (2, 2)]):
        rows = np.flatnonzero(y == label)
        cut = len(rows)
        if one != other:  # at least a tenth of 15 rows, or 8 / 3
            (cut,) = np.random.randint(2, 15, 1)
        held[one] += rows[:cut].tolist()
        held[other] += rows[cut:].tolist()
    for client, rows in held.items():
        order = np.array(rows)[np.random.permutation(len(rows))]
        tested = len(rows) - int(0.75 * len(rows))
        for part, own in (("test", order[:tested]), ("train", order[tested:])):
            found = arrays[f"x_{part}"][arrays[f"task_{part}"] == client][:, 0, 0, 0]
            np.testing.assert_allclose(found, (own / 255 - 0.5) / 0.5, atol=1e-6)
    counts = pd.read_csv(tmp_path / "own" / "counts.csv").set_index(["client", "tested"])
    assert counts.loc[(2, 0)].tolist() == [0, 0, 18]
    assert counts.to_numpy().sum() == 84
    other = small._replace(split=SPLIT.model_copy(update={"class_sizes": [[3, 28]]}))
    with pytest.raises(Refused, match=r"3 classes of 28 to 28 rows, and npz:.* has 3 of 24 "):
        written("other", other, tmp_path / "refused")


@pytest.mark.parametrize("whole", sampled([True, False], [False]))
def test_texts_are_dealt_as_images_are(whole, small, tmp_path):
    """A file of 84 numbered texts, or two of training and of test rows, become the same split."""
    given = np.load(tmp_path / "rows.npz")
    y = np.concatenate([given["y_train"], given["y_test"]])
    rows = pd.DataFrame({"text": [f'news, "{k}"\nof it' for k in range(84)], "label": y})
    place = tmp_path / "news"
    if whole:
        rows.to_csv(f"{place}.csv", index=False)
    else:
        place.mkdir()
        for part, own in (("train", rows[:60]), ("test", rows[60:])):
            own.to_parquet(place / f"{part}.parquet")
    ours = federations("pfllib")["ag-news"].settings | SETTINGS
    source = f"csv:{place}.csv" if whole else f"parquet:{place}"
    ours |= {"dataset": source, "model": "text-mean", "hidden": "4,4", "data-dir": str(tmp_path)}
    settings = written("news", Federation("news", ours, split=SPLIT), tmp_path / "own")
    written("small", small, tmp_path / "own")
    found, known = pd.read_csv(tmp_path / "own" / "news.csv"), np.load(tmp_path / "own/small.npz")
    for part in ("train", "test"):
        own = found[found["part"] == part]
        places = np.rint((known[f"x_{part}"][:, 0, 0, 0] + 1) * 127.5).astype(int)
        assert own["text"].tolist() == [f'news, "{k}"\nof it' for k in places]
        assert own["label"].tolist() == y[places].tolist()
        assert own["client"].tolist() == known[f"task_{part}"].tolist()
    run = simulate(
        method="fedavg",
        out=tmp_path / "run",
        progress=False,
        **{k.replace("-", "_"): v for k, v in settings.items()},
    )
    tested = found[found["part"] == "test"].groupby("client").size()
    assert run.results["clients"]["queries"] == tested.tolist()


@pytest.mark.full
def test_figures_stand_beside_the_published_ones(small, tmp_path, engram, monkeypatch):
    monkeypatch.setattr(tune_cli, "federations", lambda suite: {"small": small})
    folder = tmp_path / "found"
    words = ["fedavg", "--suite", "pfllib", "--seeds", "2", "--out", folder, "--json"]
    status, out, err = engram("benchmark", *words)
    assert status == 0, err
    best = []
    for seed in range(2):
        run = folder / "small" / f"fedavg-seed{seed}"
        rows = json.loads((run / "results.json").read_text())["clients"]["queries"]
        lines = map(json.loads, (run / "scores.jsonl").read_text().splitlines())
        each = [np.dot(line["accuracy"], rows) / sum(rows) for line in lines if "accuracy" in line]
        assert len(each) >= 3
        best.append(max(each))
    table = pd.read_csv(folder / "scores.csv", index_col="method")
    own = table.loc["fedavg"]
    assert own["small (best-test, as published)"] == pytest.approx(np.mean(best), abs=1e-6)
    assert own["small (published, %)"] == "80.41 ± 0.08"
    assert table.loc["local"].isna().tolist() == [False, False, True]
    found = json.loads(out.splitlines()[-1])["federations"]["small"]
    assert found["best-test"]["fedavg"] == pytest.approx(np.mean(best), abs=1e-6)
    assert not (folder / "small" / "tuning").exists()
    status, _, err = engram("benchmark", "--suite", "mine")
    assert status
    assert "--suite must be one of pfllib, got 'mine'" in err
