"""Scores on other clients' rows, and fine-tuning by parts, each by hand."""

import numpy as np
import pytest
import torch
from scipy.stats import t as student

import engram
from engram.compare.comparison_folder import find_runs
from engram.compare.report_rows import report_rows, shown_rounds
from engram.core.streams import Stream, generator
from engram.scoring.evaluation import jain
from engram.scoring.intervals import grouped
from engram.settings.errors import Refused
from tests.support import cross_entropy, initial_model, scores_of, small_of_any, trainer


def tuned_by_hand(t, client, probing):
    """Plain gradient steps, of which the first ``probing`` move the last layer alone."""
    e, own, w = t.experiment, t.data.train.rows[client], initial_model(t)["model"]
    draw = generator(e.seed, Stream.FINE_TUNING, client).integers(len(own), size=e.adapt_steps * 4)
    for number, rows in enumerate(np.split(own[draw], e.adapt_steps)):
        batch = t.data.train.take(torch.from_numpy(rows))
        gradient = torch.func.grad(cross_entropy(t.learner.model))(w, batch)
        names = [n for n in w if number >= probing or n.startswith("dense1.")]
        w = w | {n: w[n] - e.adapt_lr * gradient[n] for n in names}
    return w


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_each_part_is_fine_tuned_as_by_plain_steps_and_scored_on_others_rows(engine):
    for part, probing in (("all", 0), ("head", 3), ("lp-ft", 2)):
        own = {"adapt_part": part, "adapt_steps": 3, "adapt_lr": 0.5, "elsewhere": 2}
        e = small_of_any(method="fedavg", unseen_clients=2, seed=3, **own)
        t = trainer(e, engine=engine)
        never = generator(3, Stream.UNSEEN).permutation(e.num_clients)[:2]
        last = max({*range(e.num_clients)} - {*never})
        order = generator(3, Stream.ELSEWHERE).permutation(last + 1)
        order = [c for c in order if c not in never]
        groups = np.array_split(order, len(order) // 3)
        asked = [int(groups[0][0]), int(groups[1][2]), int(never[0])]
        scores = scores_of(t, asked)
        models = {"": initial_model(t)["model"], "-tuned": None}
        for i, others in enumerate([groups[0][1:3], [*groups[1][3:], *groups[1][:2]][:2]]):
            models["-tuned"] = tuned_by_hand(t, asked[i], probing)
            for which, w in models.items():
                each = []
                for other in others:
                    x, y = t.data.test.take(torch.from_numpy(t.data.test.rows[other]))
                    each.append(float((t.learner.model.apply(w, x).argmax(1) == y).float().mean()))
                found = scores.columns[f"accuracy{which}-elsewhere"]
                assert float(found[i]) == pytest.approx(np.mean(each), abs=1e-6), (part, which)
                assert found[2].isnan()


def test_an_interval_of_groups_is_students_of_their_sums():
    rng = np.random.default_rng(0)
    runs = [[rng.normal(size=n) for n in (3, 3, 3, 3)], [rng.normal(size=n) for n in (4, 4, 4)]]
    mean, low, high = grouped(runs[:1])
    means = np.mean(runs[0], axis=1)
    half = student.ppf(0.975, 3) * means.std(ddof=1) / 2
    assert (mean, low, high) == pytest.approx((means.mean(), mean - half, mean + half))
    each = [np.mean(run, axis=1) for run in runs]
    within = np.mean([x.var(ddof=1) / len(x) for x in each])
    between = np.var([x.mean() for x in each], ddof=1) / 2
    degrees = max((within + between) ** 2 / (within**2 / 2 + between**2), 1)
    mean, low, high = grouped(runs)
    assert high - mean == pytest.approx(student.ppf(0.975, degrees) * (within + between) ** 0.5)
    assert grouped([[np.ones(4)]])[1:] == (-np.inf, np.inf)


def test_fairness_is_that_of_the_clients_scores(tmp_path):
    more = {"elsewhere": 3, "clock": "drawn", "progress": False, "num_clients": 12}
    run = engram.simulate(method="fedavg", num_rounds=2, out=tmp_path / "run", **more)
    row, tuned = report_rows(find_runs(run.folder))
    for found, shown, which in ((row, run.picked, ""), (tuned, run.tuned.picked, "-tuned")):
        scores = shown.clients[f"accuracy{which}"].to_numpy()
        assert found["accuracy-variance"] == pytest.approx(scores.var())
        assert found["accuracy-jain"] == pytest.approx(scores.mean() ** 2 / (scores**2).mean())
        away = shown.clients[f"accuracy{which}-elsewhere"].to_numpy()
        order = generator(0, Stream.ELSEWHERE).permutation(12)
        means = away[order].reshape(3, 4).mean(1)
        half = student.ppf(0.975, 2) * means.std(ddof=1) / 3**0.5
        ends = [found[f"accuracy-elsewhere-{end}"] for end in ("low", "high")]
        assert found["accuracy-elsewhere"] == pytest.approx(away.mean())
        assert ends == pytest.approx(np.clip([away.mean() - half, away.mean() + half], 0, 1))
    last, _ = report_rows(shown_rounds(find_runs(run.folder), "last"))
    assert last["simulated-seconds"] == run.metrics["simulated-seconds"][2]
    assert jain(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert np.isnan(jain(np.array([-1.0, 2.0])))
    why = "^elsewhere = 3 needs that figures of rows may leave clients without noise: privacy ="
    with pytest.raises(Refused, match=why):
        engram.simulate(method="fedavg", privacy="example", clip=1.0, **more)


def test_a_rounds_gradients_are_those_of_the_papers_algorithms():
    """With six local steps; LocalMOML's and Per-FedAvg's first-order steps take two gradients."""
    own = {"local_steps": 6, "num_rounds": 1, "num_clients": 4, "progress": False}
    wanted = {"fedavg": 6, "ditto": 12, "pfedme": 30, "per-fedavg": 12, "fedrep": 6, "moon": 6}
    for method, gradients in wanted.items():
        assert engram.simulate(method=method, **own).results["client-gradients"] == gradients
