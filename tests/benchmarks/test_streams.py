"""The benchmark of streams runs, and its scores are those of the definition."""

import itertools
from importlib.util import find_spec

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks import streams
from benchmarks.stream_peers import PEERS, Peer
from benchmarks.streams import SIMULATED, Stream, score
from tests.samples import entry


def test_a_peer_predicts_before_it_learns():
    x, y = np.random.default_rng(0).normal(size=(8, 3)), np.arange(8) % 2.0
    there = {name: peer for name, peer in PEERS.items() if find_spec(peer.package or "numpy")}
    for (name, peer), labels in itertools.product(there.items(), (True, False)):
        for step in (None, *peer.steps[:1]):
            found = []
            for last in (0.0, 1.0):  # the last target changes no prediction
                play = peer.start(labels, step)
                rows = peer.rows(x)
                found.append([play(r, t) for r, t in zip(rows, [*y[:7], last], strict=True)])
            with entry(name, labels, step):
                assert found[0] == found[1]
                assert len(set(found[0])) > 1  # it learns


def test_a_step_is_chosen_by_the_first_rows():
    # A learner that always says its step: of the first fifth of targets 3 is the mean.
    peer = Peer(list, lambda labels, step: lambda row, y: step or 0.0, (1.0, 3.0, 9.0))
    stream = Stream(np.zeros((20, 1)), np.where(np.arange(20) < 4, 3.0, 9.0), labels=False)
    found = streams.compete("it", peer, stream)
    assert found["it"].loss == (4 * 9 + 16 * 81) / 20
    assert found["it, tuned"].loss == 16 * 36 / 20


def test_scores_by_hand():
    stream = Stream(np.zeros((4, 1)), np.array([0.0, 1.0, 1.0, 1.0]), labels=True)
    found = score(stream, np.array([0.25, 0.5, 0.75, 1.0]), 1.0)
    assert found.loss == pytest.approx(-np.log([0.75, 0.5, 0.75, 1 - 1e-6]).mean())
    assert found.other == 0.75
    wide = Stream(np.zeros((100, 1)), (np.arange(100) % 10 < 3).astype(float), labels=True)
    assert score(wide, np.full(100, 0.4), 1.0).third == pytest.approx(0.1)
    numbers = Stream(np.zeros((2, 1)), np.array([1.0, 4.0]), labels=False)
    # The best constant is 2.5, with squares of 2.25.
    found = score(numbers, np.array([2.0, 1.0]), 1.0)
    assert found[:3] == pytest.approx((5.0, 2.0, 5.0 - 2.25))


def test_it_prints_a_table_of_each_stream(tmp_path, monkeypatch):
    ours = {name: PEERS[name] for name in ("mean of all targets so far", "mixture")}
    missing = PEERS["river"]._replace(package="a package that nobody has")
    monkeypatch.setattr(streams, "_TURNS", 1)
    monkeypatch.setattr(streams, "PEERS", ours | {"river": missing})
    stream = SIMULATED["drifting"](np.random.default_rng(0), 60)
    np.savez(tmp_path / "e.npz", x=stream.x, y=stream.y)
    command = typer.Typer()
    command.command()(streams.main)
    options = ["--rounds", "50", "--seeds", "2", "--electricity", str(tmp_path / "e.npz")]
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 0, result.output
    for text in (*SIMULATED, "electricity, 60", "river is left out", "d = 100"):
        assert text in result.output
    assert result.output.count("mixture") == 7
    assert "nan" not in result.output
