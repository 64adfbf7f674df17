"""docs/coming-from.md: what it says others have alone is not here, and what it names here is."""

import re
from typing import get_args

import numpy as np

from engram.data.load_federation import federated_data
from engram.settings.base import SharedSettings
from engram.settings.experiment import Experiment
from engram.settings.families import METHODS, family
from engram.settings.fingerprint import source_root
from engram.settings.network import NetworkMethod

PAGE = (source_root() / "docs" / "coming-from.md").read_text(encoding="utf-8")
FIELDS = {name.replace("_", "-"): field for name, field in SharedSettings.model_fields.items()}
MERGES = get_args(FIELDS["merge"].annotation)
THERE = re.findall(r"### What is better there\n(.*?)###", PAGE, flags=re.DOTALL)
CAPABILITIES = ("secure aggregation", "secagg", "polic", "audit", "adaptive clip", "dropped client")


def letters(text):
    return re.sub(r"[^a-z0-9]", "", text.lower())


def test_nothing_is_said_to_be_missing_that_is_here():
    here = {letters(name) for name in {*METHODS, *MERGES} - {"local", "mean"}}
    assert {"fedfomo", "fedamp", "fedrod", "gpfl", "fedas", "multikrum"} <= here
    assert len(THERE) == 3  # Flower, PFLlib, NVFlare
    for section in THERE:
        words = {letters(word) for word in re.findall(r"[\w-]+", section)}
        assert not words & here
        assert not [each for each in CAPABILITIES if each in section.lower()]


def test_settings_and_their_values_are_there():
    named = re.findall(r"`([a-z-]+)=([a-z][\w-]*)`", PAGE)
    assert {("aggregation", "secure"), ("merge", "median")} <= {*named}
    for key, value in named:
        assert key in FIELDS
        choices = get_args(FIELDS[key].annotation)
        assert not choices or value in choices
    others = re.search(r"`merge=median`((?:, `[\w-]+`)+), with every method", PAGE)[1]
    assert {*re.findall(r"`([\w-]+)`", others)} <= {*MERGES}


def test_the_number_of_methods_is_right():
    (number,) = re.findall(r"- (\d+) methods behind one call", PAGE)
    assert int(number) == len(family(NetworkMethod.plug_in))


def test_pfllibs_split_is_taken_as_it_is(tmp_path, monkeypatch):
    (block,) = (
        each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "task_" in each
    )
    monkeypatch.chdir(tmp_path)
    exec(block.partition("run = ")[0], {})
    settings = {"dataset": "npz:split.npz", "partition": "natural"}
    settings |= {"num-clients": 4, "clients-per-round": 4}
    data = federated_data(Experiment.from_config(settings))
    for client in range(4):
        for part, split in (("train", [data.train, data.validation]), ("test", [data.test])):
            file = tmp_path / "dataset" / "Small" / part / f"{client}.npz"
            given = np.load(file, allow_pickle=True)["data"].item()["x"].reshape(-1, 64)
            rows = np.concatenate([s.x[s.rows[client]].reshape(-1, 64) for s in split])
            np.testing.assert_array_equal(rows[np.lexsort(rows.T)], given[np.lexsort(given.T)])
