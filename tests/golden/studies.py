"""Every study of a paper, shortened: what its command records in results.json."""

import json
from functools import partial
from unittest.mock import patch

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from engram.bandits.meta_ban import meta_ban
from engram.bandits.studies import methods as meta_ban_methods
from engram.cli.cli import app
from engram.online.studies import server_steps
from engram.tables.studies import regression as figures
from tests.support import write_npz
from tests.tables.studies.test_regression import SMALL

ONE = ["--processes", "1"]
SEED = ["--seeds", "1"]
POLICIES = ["meta-ban", "neural-ucb-one", "neural-ucb-ind", "neural-ts", "club", "sclub", "cofiba"]
POLICIES += ["locb", "linucb-one", "linucb-ind", "epsilon-greedy", "molar", "random"]


def study(folder, *words):
    """Runs a study in a new folder; returns what it recorded."""
    out = folder / "study"
    done = CliRunner().invoke(app, ["reproduce", *map(str, words), "--out", str(out)])
    assert done.exit_code == 0, done.exception or done.output
    text = (out / "results.json").read_text(encoding="utf-8")
    return json.loads(text.replace(str(folder), "FOLDER"))


def sinewave(folder, *words):
    return study(folder, "sinewave", *words, "--iterations", 20, "--seeds", 2, *ONE)


def one_shot(folder, *words):
    images = np.random.default_rng(0).integers(0, 256, (700 * 6, 28, 28), dtype=np.uint8)
    write_npz(folder / "omniglot28.npz", x=images, y=np.arange(4200) % 700)
    return study(folder, "one-shot", *words, "--data-dir", folder, "--iterations", 5, *SEED, *ONE)


def regression(folder):
    with patch.object(figures, "FIGURES", SMALL):
        return study(folder, "molar-regression", "--trials", 2, *ONE)


def table(folder, *words):
    rng = np.random.default_rng(0)
    x, task = rng.normal(size=(480, 3)), np.repeat(range(8), 60)
    frame = pd.DataFrame(x, columns=["age", "dose", "weight"]).assign(hospital=task)
    logits = x @ [1.0, -2.0, 0.5] + (task == 3) * 2 * x[:, 0]
    frame = frame.assign(pressure=logits + rng.normal(size=480))
    frame = frame.assign(died=(rng.random(480) < 1 / (1 + np.exp(-logits))).astype(int))
    frame.to_csv(folder / "mine.csv", index=False)
    mine = ["molar-table", folder / "mine.csv", "--task", "hospital", "--splits", 2]
    return study(folder, *mine, "--paper", "--intervals", "shared", *words)


def stream(folder):
    rng = np.random.default_rng(0)
    y = np.arange(640) % 2
    x = rng.normal(size=(640, 2)) + np.outer(y, [1.0, -0.5])
    path = write_npz(folder / "table.npz", x=x, y=y).removeprefix("npz:")
    with patch.object(server_steps, "_WIDTH", 1):
        return study(folder, "universal-stream", path, "--rounds", 4)


def bandits(folder, world, *methods):
    chosen = [word for name in methods for word in ("--method", name)]
    with patch.object(meta_ban_methods, "meta_ban", partial(meta_ban, group_cap=None)):
        return study(folder, "meta-ban", world, "--rounds", 12, *SEED, *ONE, *chosen)


CASES = {
    "sinewave": sinewave,
    "sinewave, published": lambda folder: sinewave(folder, "--published"),
    "sinewave, tuned": lambda folder: sinewave(folder, "moml-v1", "-k", 1, "--tune"),
    "one-shot": one_shot,
    "one-shot, first-order": lambda folder: one_shot(
        folder, "moml-v1", "maml", "--hessian", "first-order"
    ),
    "molar-regression": regression,
    "molar-bandit": lambda folder: study(
        folder, "molar-bandit", "--horizon", 64, "--trials", 2, *ONE
    ),
    "molar-table": lambda folder: table(folder, "--target", "pressure", "--drop", "died"),
    "molar-table, logistic": lambda folder: table(
        folder, "--target", "died", "--drop", "pressure", "--family", "logistic"
    ),
    "universal": lambda folder: study(
        folder, "universal", "linear", "logistic", "bilinear-honest", "--horizon", 30, *SEED, *ONE
    ),
    "universal-stream": stream,
    "meta-ban, linear groups": lambda folder: bandits(folder, "linear-groups", *POLICIES),
    "meta-ban, digits": lambda folder: bandits(folder, "digits", "meta-ban", "linucb-ind"),
}
