"""Models that learn targets by heart tell who was there; those that learn nothing do not."""

import json

import numpy as np
import pytest

import engram as api
from engram.attack.audit.members import members


def clients(rows=110):
    """Returns rows whose targets nobody could tell without having seen them."""
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=(rows, 8)).astype(np.float32), rng.integers(2, size=rows))
        for _ in range(5)
    ]


def told(tmp_path, **settings):
    run = api.simulate(
        clients(), out=tmp_path / "run", progress=False, hidden="32", batch_size=32, **settings
    )
    return members(run.learned, 4, "vectorized", lambda title, total: lambda done, found: None)


def test_models_that_know_their_rows_by_heart_tell_them(tmp_path):
    found = told(tmp_path, method="fedper", num_rounds=12, local_steps=10, eta=0.5)
    assert list(found) == [""]  # FedPer has no common model
    assert found[""].share > 0.03  # of four federations, the interval is wide
    assert found[""].area > 0.7


def test_models_that_have_hardly_learned_do_not(tmp_path):
    found = told(tmp_path, method="fedavg", num_rounds=1, local_steps=1, eta=1e-4)
    assert list(found) == ["", "-common"] or list(found) == ["-common", ""]
    for power in found.values():
        assert power.low <= 0.01 + 0.02
        assert power.area == pytest.approx(0.5, abs=0.1)


@pytest.fixture
def folder(tmp_path):
    """A run on rows of a file."""
    each = clients(60)
    x, y = (np.concatenate(part) for part in zip(*each, strict=True))
    np.savez(tmp_path / "rows.npz", x=x, y=y, task=np.repeat(np.arange(5), 60))
    settings = {"dataset": f"npz:{tmp_path / 'rows.npz'}", "partition": "natural", "num_clients": 5}
    settings |= {"method": "fedavg", "num_rounds": 2, "clients_per_round": 5, "test_fraction": 0.1}
    api.simulate(out=tmp_path / "run", validation_fraction=0.0, progress=False, **settings)
    return tmp_path / "run"


def test_the_command_keeps_what_it_finds(engram, folder):
    status, out, err = engram("audit", folder, "--federations", 4, "--clients", 1)
    assert status == 0, err
    assert "seen by" in out
    assert "Whoever has the common model recognizes" in out
    kept = json.loads((folder / "audit.json").read_text())
    assert kept["federations"] == 4
    assert {each["by"] for each in kept["messages"]} == {"server", "members"}
    status, out, _ = engram("audit", folder, "--federations", 4, "--json")
    assert status == 0
    assert json.loads(out)["members"] == kept["members"]  # by seed


def test_what_cannot_be_audited_is_refused_in_a_line(engram, folder):
    status, _, err = engram("audit", folder, "--federations", 5)
    assert status == 2
    assert "federations must be an even number, at least 4, got 5" in err
    settings = {"method": "fedavg", "num_rounds": 1, "progress": False, "validation_fraction": 0.0}
    few = api.simulate(clients(20), **settings)
    with pytest.raises(ValueError, match="at least 100 that a model has not seen"):
        api.audit(few, federations=4, progress=False)
    one = api.simulate([*clients(20), tuple(part[:1] for part in clients()[0])], **settings)
    with pytest.raises(ValueError, match="client 5 has 1 rows, of which 4 federations cannot"):
        api.audit(one, federations=4, progress=False)
    assert not (few.folder / "audit.json").exists()
