"""Runs that forget what they have learned are told."""

import numpy as np
import pytest

from engram.settings.errors import RunStopped
from tests.evidence import stability


def test_color_images_have_their_classs_pattern():
    drawn = stability.color_images(np.random.default_rng(0), 300)
    x, y = drawn["x"].astype(float), drawn["y"]
    assert x.shape == (300, 32, 32, 3)
    assert set(y.tolist()) == set(range(10))
    x -= x.mean(axis=(1, 2, 3), keepdims=True)  # brightness
    means = np.stack([x[:200][y[:200] == c].mean(axis=0) for c in range(10)])
    likely = np.einsum("nijk,cijk->nc", x[200:], means).argmax(axis=1)
    assert (likely == y[200:]).mean() > 0.95


def test_a_fall_below_the_best_round_is_marked_and_counted(monkeypatch, capsys):
    curves = {"local-moml": [0.2, 0.9, 0.85], "per-fedavg": [0.2, 0.9, 0.89]}

    def curve(config):
        if config["method"] == "pfedme":
            raise RunStopped("the model is not finite")
        return curves[config["method"]]

    monkeypatch.setattr(stability, "curve", curve)
    monkeypatch.setattr(stability, "PARTITIONS", {"iid": {}})
    monkeypatch.setattr(stability, "datasets", lambda *files: {"digits": "digits"})
    stability.main()
    out = capsys.readouterr().out
    assert "90.0, 85.0 *" in out
    assert "90.0, 89.0 " in out
    assert "diverges *" in out
    assert "2 of 3 runs end more than two points below their best" in out


@pytest.mark.parametrize("given", [[], ["per-fedavg.eta=0.2"]])
def test_a_curve_has_the_start_and_every_tenth_round(given, monkeypatch):
    monkeypatch.setattr(stability, "METHODS", ("per-fedavg",))
    monkeypatch.setattr(stability, "PARTITIONS", {"halves": {}})
    monkeypatch.setattr(stability, "datasets", lambda *files: {"digits": "digits"})
    seen, curve = [], stability.curve
    monkeypatch.setattr(
        stability, "curve", lambda config: seen.append((config, curve(config))) or seen[-1][1]
    )
    stability.main(rounds=20, given=given)
    ((config, accuracies),) = seen
    assert len(accuracies) == 3
    assert all(0 <= value <= 1 for value in accuracies)
    assert config.get("per-fedavg.eta") == (given[0][-3:] if given else None)
