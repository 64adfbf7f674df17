"""The models of the round that validation rows pick: had, loaded, exported, resumed."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import engram as library
from engram.settings.errors import Refused
from engram.simulations.engine import simulate
from engram.wire.checksums import Journal
from tests.samples import entry
from tests.support import assert_same, small

RUN = {"num_rounds": 10, "eval_every": 1, "checkpoint_every": 3, "local_steps": 5, "eta": 0.3}
RUN |= {"hidden": "16", "metrics": "log-loss", "progress": False, "seed": 5}


def clients():
    """Labels that say little, so that models soon learn them by heart."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(4):
        x = rng.normal(size=(40, 6)).astype(np.float32)
        found.append((x, (x[:, 0] + 1.5 * rng.normal(size=40) > 0).astype(int)))
    return found


def ends(run):
    """Each picked round, by key of the results, and that it is not the last by chance."""
    found = {key: run.results[key]["round"] for key in run.results if key.startswith("selected")}
    assert all(0 < server_round < 10 for server_round in found.values())
    return found


@pytest.mark.parametrize(
    ("method", "engine"),
    [("fedavg", "vectorized"), ("ditto", "sequential"), ("fedper", "vectorized")],
)
def test_they_are_those_of_a_run_that_ends_there(method, engine, tmp_path):
    own = RUN | {"method": method, "engine": engine}
    run = library.simulate(clients(), out=tmp_path / "run", **own)
    end = ends(run)["selected"]
    short = library.simulate(clients(), out=tmp_path / "short", **own | {"num_rounds": end})
    assert_same(run.picked.model, short.model)
    for client in (0, 3):
        assert_same(run.picked.personal_model(client), short.personal_model(client))
    last = library.load_run(run.folder, clients()).personal_model(0)
    assert not torch.equal(last["dense0.weight"], run.picked.personal_model(0)["dense0.weight"])


def test_they_outlive_an_interruption(tmp_path, monkeypatch):
    whole = library.simulate(clients(), method="ditto", out=tmp_path / "whole", **RUN)
    append = Journal.append
    for stop in (2, 6, 9):

        def killed(journal, row, stop=stop):
            if row["round"] == stop and journal.path.name == "metrics.jsonl":
                raise KeyboardInterrupt
            append(journal, row)

        folder = tmp_path / str(stop)
        with entry(stop):
            monkeypatch.setattr(Journal, "append", killed)
            with pytest.raises(KeyboardInterrupt):
                library.simulate(clients(), method="ditto", out=folder, **RUN)
            monkeypatch.undo()
            run = library.simulate(clients(), resume=folder, progress=False)
            assert ends(run) == ends(whole)
            assert_same(run.picked.model, whole.picked.model)
            assert_same(run.picked.personal_model(2), whole.picked.personal_model(2))
            assert len(list(run.folder.glob("picked/selected/*"))) <= 2


def test_they_are_exported_with_their_own_scores(engram, tmp_path):
    run = library.simulate(clients(), method="fedavg", out=tmp_path / "run", **RUN)
    found = ends(run)
    folder = run.picked.export(1, out=tmp_path / "own")
    assert f"run, after round {found['selected']}, which validation rows pick" in (
        folder / "card.md"
    ).read_text(encoding="utf-8")
    scored = run.results["selected"]["clients"]["log-loss"][1]
    assert f"| log-loss | {scored:.4g} |" in (folder / "card.md").read_text(encoding="utf-8")
    status, out, err = engram("export", "run", "--common", "--picked", "--out", "common")
    assert (status, err) == (0, "")
    assert f"{run.results['selected']['log-loss-common']:.4g}" in out
    loaded = library.load_model("common").state_dict()
    kept = run.picked.model.values()
    assert all(torch.equal(a, b) for a, b in zip(loaded.values(), kept, strict=True))


def test_what_cannot_be_had_is_told_in_one_line(engram, tmp_path):
    bare = library.simulate(
        clients(), method="ditto", out=tmp_path / "bare", validation_fraction=0.0, **RUN
    )
    with pytest.raises(Refused, match="bare picks no round: it has no validation rows"):
        _ = bare.picked.model
    status, _, err = engram("export", "bare", "--client", "1", "--picked")
    assert (status, err) == (2, "engram: bare picks no round: it has no validation rows\n")
    run = library.simulate(clients(), method="ditto", out=tmp_path / "run", **RUN)
    there = run.picked
    there.learned.checkpoint = there.learned.checkpoint._replace(memories=None)  # on nodes
    assert there.model
    with pytest.raises(Refused, match=r"what clients remembered in round \d+ of .* is gone: nodes"):
        there.personal_model(1)
    shutil.rmtree(Path("run/picked"))
    with pytest.raises(Refused, match=r"round-\d+ is damaged, or missing"):
        _ = run.picked.model


def test_a_run_that_goes_on_picks_among_the_rounds_of_an_uninterrupted_one(tmp_path):
    rare = RUN | {"eval_every": 4}
    first = library.simulate(clients(), out=tmp_path / "parts", **rare | {"num_rounds": 2})
    early = first.results["selected"]["round"]
    assert early == 2  # which is scored as its last round
    assert first.picked.model.keys() == first.model.keys()
    whole = library.simulate(clients(), out=tmp_path / "whole", **rare)
    parts = library.simulate(clients(), resume=tmp_path / "parts", num_rounds=10, progress=False)
    assert whole.results["selected"]["round"] != early
    assert parts.results["selected"] == whole.results["selected"]


def test_models_after_fine_tuning_are_handed_out_too(tmp_path, engram):
    """They are those that ``-tuned`` scores are of; a mixture is not fine-tuned."""
    simulate(small(method="fedavg", seed=1), tmp_path / "run")
    run = library.load_run(tmp_path / "run")
    tuned = run.tuned.learned
    for client in (0, 7):
        w = run.model
        support = [*tuned._trainer.scorer.models._support([client]).batches()]
        network, e = tuned.network, tuned.experiment
        for step in range(e.adapt_steps):
            x, y = (leaf[0] for leaf in support[step % len(support)])
            leaves = {n: leaf.detach().requires_grad_() for n, leaf in w.items()}
            loss = torch.nn.functional.cross_entropy(network.apply(leaves, x), y)
            loss.backward()
            w = {n: leaf.detach() - e.adapt_lr * leaf.grad for n, leaf in leaves.items()}
        torch.testing.assert_close(run.tuned.personal_model(client), w, rtol=1e-5, atol=1e-6)
        x, y = tuned.data.test.take(torch.from_numpy(tuned.data.test.rows[client]))
        accuracy = (network.apply(w, x).argmax(1) == y).float().mean()
        assert run.clients["accuracy-tuned"][client] == pytest.approx(float(accuracy))
    out = tmp_path / "model"
    assert engram("export", str(run.folder), "--client", "7", "--tuned", "--out", str(out))[0] == 0
    assert "fine-tuned" in (out / "card.md").read_text()
    simulate(small(method="fedem", components=2), tmp_path / "other")
    with pytest.raises(Refused, match="method must be one that serves a network, for tuned"):
        library.load_run(tmp_path / "other").tuned.personal_model(0)
