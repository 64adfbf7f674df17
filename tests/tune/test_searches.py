"""Searches of settings: where they look, what is proposed, and what is dropped."""

import numpy as np
import pytest

from engram.settings.families import METHODS, family
from engram.settings.fields import Range, key_of, searched_range
from engram.settings.network import NetworkMethod
from engram.tune import search as searching
from engram.tune.proposals import propose
from engram.tune.record import Trial, ranked
from engram.tune.search import Search, search
from engram.tune.space import Dimension, space_of
from tests.samples import entry
from tests.support import small, trained_together

TRAINED = family(NetworkMethod.plug_in)

# --- Spaces ----------------------------------------------------------------------------------


def test_defaults_lie_where_they_are_searched_and_both_ends_are_possible():
    for name in TRAINED:
        for dimension in space_of(name, {}):
            with entry(name, dimension):
                assert isinstance(dimension.within, Range)
                assert dimension.within.low <= dimension.default <= dimension.within.high
        for key, field in METHODS[name].model_fields.items():
            if (found := searched_range(field)) is not None:
                for value in (found.low, found.high):
                    with entry(name, key, value):
                        METHODS[name].model_validate({key_of(key): value})


def test_what_the_literature_tunes_is_searched():
    for name, key in [
        *(("fedrep", "personal-share"), ("fedalt", "personal-share"), ("fedpac", "head-share")),
        *(("fedala", "weight-share"), ("knn-per", "k"), ("ifca", "clusters")),
        *(("fedem", "components"), ("pfedhn", "embedding"), ("pfedme", "inner-steps")),
        *(("fedadagrad", "beta1"), ("fedadam", "beta1"), ("fedadam", "beta2")),
        ("fedyogi", "beta2"),
    ]:
        with entry(name, key):
            (dimension,) = (d for d in space_of(name, {}) if d.key == key)
            proposed = propose((dimension,), [], 8, seed=0, higher=True)
            kind = type(METHODS[name].defaults()[key])
            assert len({each[key] for each in proposed}) > 3
            assert {type(each[key]) for each in proposed} == {kind}


def test_only_who_fine_tunes_searches_its_step_size():
    for name, tuned in (("local-moml", True), ("fedavg", False), ("pfedme", False)):
        assert ("adapt-lr" in [dimension.key for dimension in space_of(name, {})]) == tuned


def test_what_is_asked_for_takes_the_place_of_what_is_declared():
    space = space_of(
        "fedavg", {"adapt-lr": 0.1}, ["eta=0.5..2", "batch-size=5,10", "local-steps=1..9:log"]
    )
    eta, batch, steps = space
    assert eta == Dimension("eta", Range(0.5, 2.0), 0.1)
    assert (batch.within, batch.whole) == ((5, 10), True)
    assert (steps.within, steps.whole) == (Range(1, 9, log=True), True)
    (weights,) = (d for d in space_of("apfl", {}, ["adaptive=true,false"]) if d.key == "adaptive")
    assert weights.within == (True, False)


# --- Proposals -------------------------------------------------------------------------------

SPACE = (
    Dimension("eta", Range(1e-3, 1, log=True), 0.1),
    Dimension("local-steps", Range(1, 20), 5, whole=True),
    Dimension("order", ("shuffled", "stream"), "shuffled"),
)


def test_proposals_begin_with_the_defaults_and_lie_in_the_space():
    first, *others = propose(SPACE, [], 20, seed=3, higher=True)
    assert first == {"eta": 0.1, "local-steps": 5, "order": "shuffled"}
    for each in others:
        assert 1e-3 <= each["eta"] <= 1
        assert each["local-steps"] in range(1, 21)
        assert each["order"] in ("shuffled", "stream")
    # Evenly by logarithm: half of them below the geometric mean of both ends.
    assert 4 <= sum(each["eta"] < 10**-1.5 for each in others) <= 15


def test_proposals_are_a_function_of_what_is_known_and_the_seed():
    known = [
        Trial(i, each, "done", 8, (i / 9,))
        for i, each in enumerate(propose(SPACE, [], 9, seed=0, higher=True))
    ]
    one, again, other = (propose(SPACE, known, 5, seed=seed, higher=True) for seed in (0, 0, 1))
    assert one == again != other


def test_proposals_go_where_scores_are_better():
    for higher in (True, False):
        known = []
        for number in range(6):
            for each in propose(SPACE[:1], known[: 8 * number], 8, seed=1, higher=higher):
                far = abs(np.log10(each["eta"]) + 2)  # from 0.01
                known.append(Trial(len(known), each, "done", 8, (-far if higher else far,)))
        first, last = (
            np.median([abs(trial.scores[0]) for trial in some]) for some in (known[:16], known[24:])
        )
        assert last < 0.8 * first


# --- Searches --------------------------------------------------------------------------------


class FakeStacked:
    """Runs whose score after a round is the round times eta, and that stop above eta = 1."""

    def __init__(self, members):
        self.keep(members)

    def keep(self, members):
        self.members = members

    def train(self, step):
        for member in self.members:
            member.trained = step.number


class FakeMember:
    def __init__(self, experiment):
        self.experiment, self.trained = experiment, 0
        self.stopped = "diverged in round 1" if experiment.own.eta > 1 else ""

    def validated(self, rung, adapt_lr=None):
        assert self.trained == rung
        return self.experiment.own.eta * rung / 100


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(searching, "Stacked", FakeStacked)
    monkeypatch.setattr(
        searching, "members_of", lambda experiments, _: [*map(FakeMember, experiments)]
    )


def find(trials=8, known=(), seeds=(0, 1), **fixed):
    """Returns the trials of a search, and all that was noted of them."""
    given = {"method": "fedavg", "num-rounds": 40, **fixed}
    notes = []
    plan = Search(given, space_of("fedavg", given), trials, seeds)
    found = search(plan, known, notes.append, lambda done, total, words: None)
    return found, notes


def test_rungs_drop_the_worse_half_and_keep_the_defaults(fake):
    found, _ = find(trials=16)
    batch = found[:4]
    by_eta = sorted(batch, key=lambda trial: -trial.settings["eta"])
    assert by_eta[0].state == "done"
    assert found[0].state == "done"  # the defaults
    assert {trial.round for trial in found} == {10, 20, 40}
    for start in range(4, 16, 4):
        assert sorted(trial.round for trial in found[start : start + 4]) == [10, 10, 20, 40]
    best = [max(found[: start + 4], key=lambda trial: trial.value) for start in range(0, 16, 4)]
    assert [trial for trial in found if "adapt-lr" in trial.settings] == [
        trial for trial in found if trial in best
    ]
    for trial in found:
        assert trial.scores == pytest.approx([trial.settings["eta"] * trial.round / 100] * 2)
    assert ranked(found, 1)[0].settings["eta"] == max(
        trial.settings["eta"] for trial in found if trial.round == 40
    )


def test_a_trial_that_diverges_is_the_worst_and_no_error(fake):
    given = {"method": "fedavg", "num-rounds": 40}
    plan = Search(given, space_of("fedavg", {"adapt-lr": 1}, ["eta=0.1..9"]), 12, (0,))
    found = search(plan, [], lambda trial: None, lambda *_: None)
    lost = [trial for trial in found if trial.settings["eta"] > 1]
    assert lost
    assert {(trial.state, trial.value) for trial in lost} == {("diverged", None)}
    assert ranked(found, 1)[0].settings["eta"] <= 1


def test_settings_that_contradict_each_other_or_do_not_fit_the_data_are_a_trial():
    given = {"method": "pfedme", "num-rounds": 1, "hidden": "4", "eta": 0.1, "lambda": 15.0}
    plan = Search(given, space_of("pfedme", given, ["alpha=0.01,10"]), 8, (0,))
    found = search(plan, [], lambda trial: None, lambda *_: None)
    bad = next(trial for trial in found if trial.state == "impossible")
    assert bad.reason == "alpha * lambda must be below 2, got 150.0"
    given = {"method": "fedavg", "num-rounds": 1, "hidden": "8", "eta": 0.1, "adapt-lr": 0.1}
    space = space_of("fedavg", given, ["model=lstm,mlp"])
    found = search(Search(given, space, 6, (0,)), [], lambda trial: None, lambda *_: None)
    states = {"mlp": "done", "lstm": "impossible"}
    assert [trial.state for trial in found] == [states[t.settings["model"]] for t in found]
    (bad, *_) = [trial for trial in found if trial.state == "impossible"]
    assert "lstm" in bad.reason
    assert ranked(found, 1)[0].settings["model"] == "mlp"


def test_a_search_that_goes_on_finds_what_it_would_have_found(fake):
    whole, notes = find(trials=16)
    for cut in (3, 9, 17):
        known = list({trial.number: trial for trial in notes[:cut]}.values())
        assert find(trials=16, known=known)[0] == whole


def test_every_setting_is_tried_on_the_same_seeds(fake):
    runs = Search({"method": "fedavg"}, (), 1, (4, 7)).experiments({"eta": 0.3})
    assert [(run.seed, run.own.eta) for run in runs] == [(4, 0.3), (7, 0.3)]


def test_what_decides_is_on_validation_rows_and_of_the_model_that_serves():
    for name in ("fedavg", "pfedme"):
        e = small(method=name, unseen_clients=3, num_rounds=2)
        (member,) = trained_together([e])
        columns = {key: column.numpy() for key, column in member.scores(2).columns.items()}
        served = columns["validation-accuracy"]
        seen = [c for c in range(e.num_clients) if c not in member.scoring.unseen]
        assert len(seen) == e.num_clients - 3
        assert member.validated(2) == pytest.approx(served[seen].mean())
        (other,) = trained_together([e.model_copy(update={"adapt_lr": 0.5})])
        tuned = other.scores(2).columns["validation-accuracy-tuned"].numpy()
        assert member.validated(2, 0.5) == pytest.approx(tuned[seen].mean())
        assert tuned[seen].mean() != columns["validation-accuracy-tuned"][seen].mean()
