"""One-shot classification: whose images are shown when, and what an accuracy is one of."""

import json

import numpy as np
import pytest
import torch

from engram.meta.meta_gradient import fine_tune
from engram.meta.studies import one_shot
from engram.meta.studies.few_shot import FewShot
from engram.meta.studies.methods import METHODS
from engram.meta.studies.one_shot import OneShot
from engram.meta.studies.published import ONE_SHOT_PUBLISHED, SPLITS, TABLE_4, Split
from engram.meta.studies.sweep import Sweep, SweepRun, run_sweep
from engram.networks.built_in import build_model
from engram.settings.errors import Refused
from tests.samples import entry, sampled
from tests.studies.support import reproduce
from tests.support import cross_entropy

WAYS, EACH, PIXELS = 3, 8, 12
SPLIT = Split(training=4, test=2)


def noise(classes=20, each=EACH, ways=WAYS, seed=0):
    """Images that tell nothing of their class, but for two pixels: which it is, and which image."""
    images = np.random.default_rng(seed).integers(0, 256, (classes, each, PIXELS), dtype=np.uint8)
    images[:, :, 0] = np.arange(classes)[:, None]
    images[:, :, 1] = np.arange(each)
    return FewShot("noise", images, ways)


def blots(spread=0, classes=20, seed=1):
    """Images that are their class's, give or take so many levels of each pixel."""
    rng = np.random.default_rng(seed)
    images = rng.integers(20, 236, (classes, 1, PIXELS)) + rng.integers(
        -spread, spread + 1, (classes, EACH, PIXELS)
    )
    return FewShot("blots", images.astype(np.uint8), WAYS)


def models(problem, seeds=(0, 1)):
    return problem.layout.pack([problem.start(seed) for seed in seeds])


def whose(x):
    """The class and the number of images of noise, (..., 2)."""
    return (255 * x[..., :2]).round().long()


def shown_in(problem, episodes):
    """The images of episodes, (e, 1 + query, ways, 2)."""
    return problem._pool[episodes][..., :2].long().unflatten(1, (-1, problem.ways))


# --- Tasks -------------------------------------------------------------------------------


def test_no_two_tasks_share_a_class():
    problem = OneShot(noise(), SPLIT, query=2, episodes=6, lr=0.05)
    assert problem.tasks == SPLIT.training
    x, _ = problem.batch(torch.arange(4).unsqueeze(0), torch.zeros(1, 4, WAYS))
    training = whose(x)[0, :, :, 0]
    test = shown_in(problem, problem._unseen)[:2, 0, :, 0]
    classes = torch.cat([training, test]).flatten().tolist()
    assert len(set(classes)) == (4 + 2) * WAYS
    assert classes != sorted(classes)  # they are shuffled
    assert torch.equal(shown_in(problem, problem._seen)[:, 0, :, 0], training)


def test_a_batchs_row_is_of_its_task_and_of_the_class_that_is_its_turn():
    problem = OneShot(noise(), SPLIT, query=2, episodes=6, lr=0.05)
    tasks = torch.tensor([[2, 0], [3, 2]])
    uniforms = torch.rand(2, 2, 4 * WAYS, generator=torch.Generator().manual_seed(0))
    uniforms[0, 0, :3] = torch.tensor([0.0, 0.5, 1 - 2**-24])  # the most that a chance can be
    x, y = problem.batch(tasks, uniforms)
    assert x.shape == (2, 2, 4 * WAYS, PIXELS)
    assert x.dtype == torch.float32
    assert 0 <= x.min() < 0.01
    assert 0.99 < x.max() <= 1
    first, _ = problem.batch(torch.arange(4).unsqueeze(0), torch.zeros(1, 4, WAYS))
    classes = whose(first)[0, :, :, 0]  # of each task
    assert torch.equal(whose(x)[..., 0], classes[tasks].repeat(1, 1, 4))
    assert torch.equal(whose(x)[..., 1], (uniforms.double() * EACH).floor().long())
    assert whose(x)[0, 0, :3, 1].tolist() == [0, EACH // 2, EACH - 1]
    assert y.dtype == torch.float32
    assert torch.equal(y, torch.eye(WAYS).repeat(4, 1).expand(2, 2, -1, -1))


def test_nothing_is_shown_that_an_episode_is_scored_on():
    problem = OneShot(noise(), SPLIT, query=5, episodes=7, lr=0.05)
    for episodes in (problem._seen, problem._unseen):
        for images in shown_in(problem, episodes):
            assert (images[..., 0] == images[0, :, 0]).all()  # a column is one class
            assert images[0, :, 0].unique().numel() == WAYS
            for column in images[..., 1].T:
                assert column.unique().numel() == 1 + 5


# --- Scores ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["maml", "protonet"])
def test_what_else_is_scored_does_not_matter(method, monkeypatch):
    problem = OneShot(blots(60), SPLIT, query=2, episodes=30, lr=0.5)
    w = models(problem)
    both = problem.test(w, method)
    assert torch.equal(w["flat"], models(problem)["flat"])
    assert 0 < both.mean() < 1  # or there would be nothing to tell
    monkeypatch.setattr(one_shot, "_ROOM", 1)  # one episode at a time
    assert torch.equal(problem.test(models(problem), method), both)
    for r in (0, 1):
        assert torch.equal(problem.test(models(problem, [r]), method), both[r : r + 1])
    assert not torch.equal(both[0], both[1])
    again = OneShot(blots(60), SPLIT, query=2, episodes=30, lr=0.5)
    assert torch.equal(again.test(models(again), method), both)


def test_an_accuracy_is_that_of_the_adapted_network():
    problem = OneShot(blots(60), SPLIT, query=4, episodes=8, lr=0.3, steps=15)
    model = build_model("mlp", input_shape=(PIXELS,), outputs=WAYS, hidden=(40, 40))
    adapt = fine_tune(cross_entropy(model), lr=0.3, steps=15)
    w, truth = problem.start(3), torch.arange(WAYS)
    expected = []
    for rows in problem._unseen:
        x = problem._pool[rows].float() / 255
        adapted = adapt(w, (x[:WAYS], truth))
        found = model.apply(adapted, x[WAYS:]).argmax(-1)
        expected.append((found == truth.repeat(4)).float().mean())
    accuracies = problem.test(problem.layout.pack([w]), "maml")
    torch.testing.assert_close(accuracies, torch.stack(expected).unsqueeze(0))
    assert accuracies.unique().numel() > 2


# --- What cannot be ----------------------------------------------------------------------


def test_refuses_numbers_out_of_range_and_data_that_are_too_few():
    none, few = Split(4, 0), noise(classes=17)
    for data, split, given, message in [
        (noise(), none, {}, r"number of training and test tasks must be at least 1, got \(4, 0\)"),
        (noise(), SPLIT, {"query": 0}, "query must be at least 1, got 0"),
        (noise(), SPLIT, {"episodes": 0}, "episodes must be at least 1, got 0"),
        (noise(), SPLIT, {"lr": 0.0}, "adapt-lr must be positive, got 0"),
        (noise(), SPLIT, {"steps": -1}, "adapt-steps must be at least 0, got -1"),
        (few, SPLIT, {}, "^noise: 4 training and 2 test tasks of 3 .* need 18 classes, got 17$"),
        (noise(), SPLIT, {"query": 8}, "^noise: an episode needs 9 images of each class, .*got 8$"),
    ]:
        with entry(split, given), pytest.raises(ValueError, match=message):
            OneShot(data, split, **{"lr": 0.05} | given)
    problem = OneShot(noise(), SPLIT, query=2, episodes=6, lr=0.05)
    run = SweepRun("maml", "maml", 1.0, 0.1, 0)
    with pytest.raises(Refused, match=r"batch-size must be a multiple of 3, .* got 8 rows"):
        run_sweep(problem, Sweep((run,), WAYS + 1, 2, 0.1, "first-order", 1))


def test_what_was_published_is_of_methods_that_there_are():
    assert TABLE_4.keys() == ONE_SHOT_PUBLISHED.keys() == SPLITS.keys()
    for dataset, accuracies in TABLE_4.items():
        steps = ONE_SHOT_PUBLISHED[dataset]
        assert accuracies.keys() == steps.keys() <= METHODS.keys()
        assert all(0 < beta <= 1 and 0 < eta <= 0.1 for beta, eta in steps.values())
    # As the paper says in bold, of Omniglot: MOML v1 is the best.
    assert max(TABLE_4["omniglot"], key=lambda name: TABLE_4["omniglot"][name][0]) == "moml-v1"


# --- The command -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    """A data set with Omniglot's name: each class is noise around a pattern of its own."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 200, (700, 1, 6, 6))
    x = (patterns + rng.integers(0, 56, (700, 7, 6, 6))).astype(np.uint8).reshape(-1, 6, 6)
    np.savez(folder / "omniglot28.npz", x=x, y=np.repeat(np.arange(700), 7))
    return folder


@pytest.mark.parametrize(
    "way", sampled(["", "--published", "--hessian=finite-difference"], ["--published"])
)
def test_one_shot_gives_a_table(drawings, tmp_path, way):
    out = tmp_path / "run"
    few = ["maml", "protonet", "moml-v1", "--iterations", 3, "--seeds", 2]
    result = reproduce("one-shot", *few, "--data-dir", drawings, *way.split(), out=out)
    assert result.exit_code == 0, result.output
    rows = {row["method"]: row for row in json.loads((out / "results.json").read_text())["rows"]}
    assert rows.keys() == {"maml", "protonet", "moml-v1", "maml-matched"}
    assert rows["protonet"]["accuracy"] > 0.5  # patterns are far apart
    assert all(0 < row["accuracy-interval"] < 0.1 for row in rows.values())
    assert rows["maml"]["published"] == pytest.approx(0.4431)
    assert (out / "convergence.png").is_file()
    steps = {row["eta"] for row in rows.values()}
    assert (way == "--published") == (0.001 in steps)


@pytest.mark.full
@pytest.mark.usefixtures("drawn")
def test_one_shot_runs_every_method_and_tunes(drawings, tmp_path, monkeypatch):
    monkeypatch.setattr(one_shot, "GRID", (0.1,))
    out = tmp_path / "run"
    words = ["--data-dir", drawings, "--iterations", 1, "--seeds", 1, "--tune"]
    result = reproduce("one-shot", *words, out=out)
    assert result.exit_code == 0, result.output
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert {row["method"] for row in rows} == {*TABLE_4["omniglot"], "maml-matched"}
    assert {row["eta"] for row in rows} == {0.1}
