"""Runs that forget what they have learned are told."""

import numpy as np

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
