"""Survival by networks: losses and metrics against plain formulas, runs against plain torch."""

import math

import numpy as np
import pytest
import torch

import engram
from engram.core.process_modes import own_modes
from engram.home.exported import load_model
from engram.home.predicting import predict
from engram.scoring import concordant_pairs
from engram.scoring.metrics import METRICS
from engram.scoring.survival_losses import hazard_logits, log_survival
from engram.scoring.tasks import task_of
from engram.settings.errors import DataError, Refused
from tests.samples import entry
from tests.support import draw, small

CELLS = 4


def rows(count=12, seed=0):
    """Times in cells, some of them equal and some at the ends of cells, with events."""
    rng = np.random.default_rng(seed)
    time = np.concatenate([[0, 1, 2, 4, 4, 1.5], rng.uniform(0, CELLS, count - 6)])
    event = np.concatenate([[1, 1, 0, 0, 1, 0], rng.random(count - 6) < 0.6])
    return torch.from_numpy(np.column_stack([time, event])).float()


def likelihood(z, time, event):
    """The probability of a row: of an event in its cell, or of surviving those it was half in."""
    found = 1.0
    for j, logit in enumerate(z.tolist()):
        hazard = 1 / (1 + math.exp(-logit))
        if event and (j < time <= j + 1 or j == time == 0):
            return found * hazard
        if event or time >= j + 0.5:
            found *= 1 - hazard
    return found


def test_losses_are_the_likelihoods_and_penalties_of_their_papers():
    z, y = draw(1, 12, CELLS), rows()
    expected = [-math.log(likelihood(own, t, e)) for own, (t, e) in zip(z, y.tolist(), strict=True)]
    found = task_of("survival").rows(z, y)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    far = task_of("survival").rows(300 * z.float(), y)
    assert far.isfinite().all()  # of probabilities that float32 cannot tell from 0
    np.testing.assert_allclose(hazard_logits(log_survival(z)), z, atol=1e-12)

    risk, (time, event), expected = z[:, :1], y.T.tolist(), 0.0
    for i in range(12):
        if event[i]:
            at_risk = sum(math.exp(risk[j]) for j in range(12) if time[j] >= time[i])
            expected += (math.log(at_risk) - float(risk[i])) / sum(event)
    loss = task_of("survival", "cox").loss
    assert float(loss(risk, y)) == pytest.approx(expected, rel=1e-9)
    assert float(loss(risk, y * torch.tensor([1.0, 0.0]))) == 0.0

    cell = [max(math.ceil(t) - 1, 0) for t in y[:, 0].tolist()]
    died = 1 - (1 - z.sigmoid()).cumprod(1)
    ranks = sum(
        math.exp((died[j, cell[i]] - died[i, cell[i]]) / 0.1)
        for i in range(12)
        for j in range(12)
        if y[i, 1] and cell[i] < cell[j]
    )
    expected = float(task_of("survival").loss(z, y)) + ranks / 144
    assert float(task_of("survival", "deephit").loss(z, y)) == pytest.approx(expected, rel=1e-6)


def test_scores_are_of_mean_times_and_of_curves_at_the_ends_of_cells():
    z, y = draw(1, 12, CELLS), rows()
    time, event = y.double().numpy().T
    alive = (1 - z.sigmoid()).cumprod(1).numpy()
    better, pairs = concordant_pairs(time, event > 0, -alive.sum(1))
    assert METRICS["c-index"].score(z, y) == pytest.approx(better / pairs)
    one = METRICS["c-index"].score(-torch.from_numpy(alive.sum(1, keepdims=True)), y)
    assert one == pytest.approx(better / pairs)

    def unlost(t):  # of rows with an event at the same time, none is lost
        factor = 1.0
        for s in np.unique(time[(event == 0) & (time < t)]):
            at_risk = (time > s) | ((time == s) & (event == 0))
            factor *= 1 - ((time == s) & (event == 0)).sum() / at_risk.sum()
        return factor

    curves, scores = np.hstack([np.ones((12, 1)), alive]), []
    for end in range(CELLS + 1):
        errors = 0.0
        for i in range(12):
            if event[i] and time[i] <= end:
                errors += curves[i, end] ** 2 / unlost(time[i])
            elif time[i] >= end:
                errors += (1 - curves[i, end]) ** 2 / unlost(end)
        scores.append(errors / 12)
    expected = np.trapezoid(scores) / CELLS
    assert METRICS["integrated-brier"].score(z, y) == pytest.approx(expected, rel=1e-6)
    assert math.isnan(METRICS["integrated-brier"].score(z, y * torch.tensor([0.2, 1.0])))


def hospitals(count=3, size=60):
    rng = np.random.default_rng(0)
    data = {}
    for name in ("park", "lake", "hill")[:count]:
        x = rng.normal(size=(size, 4)).astype(np.float32)
        died, lost = rng.exponential(9 * np.exp(-x[:, 0])), rng.uniform(0, 30, size)
        data[name] = (x, np.column_stack([np.minimum(died, lost), died <= lost]))
    return data


QUICK = {"method": "fedavg", "task": "survival", "model": "linear", "progress": False}


def test_a_step_of_each_loss_is_that_of_plain_torch():
    (x, y), *_ = hospitals(1).values()
    data = {"park": (x, y, x[:9], y[:9])}
    full = {"batch_size": 60, "local_steps": 1, "eta": 0.05, "validation_fraction": 0.0}
    time, event = torch.from_numpy(y).T
    cells = torch.stack([(time / 20).clamp(max=1) * 5, event * (time <= 20)], 1).float()
    for loss, settings, targets in [
        ("", {"horizon": 20, "time_cells": 5}, cells),
        ("deephit", {"horizon": 20, "time_cells": 5}, cells),
        ("cox", {}, torch.from_numpy(y).float()),
    ]:
        with entry(loss):
            given = QUICK | full | settings | {"loss": loss}
            w, after = (
                engram.simulate(data, **given, num_rounds=rounds).model for rounds in (1, 2)
            )
            weight, bias = (leaf.clone().requires_grad_() for leaf in w.values())
            outputs = torch.nn.functional.linear(torch.from_numpy(x), weight, bias)
            task_of("survival", loss).loss(outputs, targets).backward()
            moved = [leaf.detach() - 0.05 * leaf.grad for leaf in (weight, bias)]
            torch.testing.assert_close(list(after.values()), moved, rtol=1e-4, atol=1e-6)
            assert outputs.shape == (60, 1 if loss == "cox" else 5)


def test_tables_name_times_and_events_by_roles_and_predictions_are_curves(tmp_path):
    pd = pytest.importorskip("pandas")
    frames = []
    for name, (x, y) in hospitals().items():
        frame = pd.DataFrame(x, columns=["age", "dose", "size", "bmi"])
        died = np.where(y[:, 1] > 0, "dead", "alive")
        frames.append(frame.assign(days=y[:, 0], state=died, task=name))
    pd.concat(frames).to_csv(tmp_path / "all.csv", index=False)
    roles = 'columns.days = {role = "time"}\n'
    roles += 'columns.state = {role = "event", values = ["alive", "dead"]}'
    table = {"dataset": f"csv:{tmp_path / 'all.csv'}", "num_clients": 3, "schema": roles}
    given = QUICK | {"horizon": 20, "time_cells": 5, "num_rounds": 3, "eta": 0.1}
    run = engram.simulate(**given | table, out=tmp_path / "run")
    assert run.learned.kind.classes == ("4", "8", "12", "16", "20")
    model = run.export("lake", out=tmp_path / "model")
    frames[1].drop(columns=["days", "state"]).to_csv(tmp_path / "new.csv", index=False)
    found = predict(model, tmp_path / "new.csv", tmp_path / "out.csv").table
    outputs = load_model(model)(torch.from_numpy(hospitals()["lake"][0])).detach()
    curves = found[[f"survival {end}" for end in (4, 8, 12, 16, 20)]].to_numpy()
    np.testing.assert_allclose(curves, (1 - outputs.sigmoid()).cumprod(1), rtol=1e-4)
    with pytest.raises(DataError, match="must name the column of the event"):
        engram.simulate(**given | table | {"schema": roles.partition("\n")[0]})


def test_what_does_not_go_together_is_refused():
    for settings, words in [
        ({}, "horizon must be above 0, .* for task survival without loss cox"),
        ({"loss": "cox", "horizon": 3}, "horizon must be 0 for task survival with loss cox"),
        ({"task": "regression", "horizon": 3}, "horizon must be 0 for task regression"),
        ({"loss": "cox", "metrics": "integrated-brier"}, "metrics must be some of c-index for"),
        ({"loss": "cox", "privacy": "example"}, "does not depend on the others: loss = cox ends"),
        ({"horizon": 9, "metrics": "rmse"}, "some of c-index, integrated-brier"),
    ]:
        with entry(settings), pytest.raises(Refused, match=words):
            small(**{"task": "survival", "method": "fedavg"} | settings)
    x, y = hospitals(1)["park"]
    for targets, words in [
        (y[:, 0], "must be a time, and 1 for an event or 0 for none, in each row, got float64"),
        (-y, "must be times of at least 0, got -"),
        (y + 1, "must be 1 for an event or 0 for none, got 2"),
    ]:
        with entry(words), own_modes(), pytest.raises(DataError, match=words):
            engram.simulate({"park": (x, targets)}, **QUICK, loss="cox", num_rounds=1)
