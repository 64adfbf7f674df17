"""Runs that forget what they have learned are told."""

from engram.settings.errors import RunStopped
from tests.evidence import stability


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
