"""A protection of a user's own, from this file alone, on everything that runs methods.

This file is also the plug-in that makes it known to other processes.
"""

import json

import pytest
import torch

import engram
from engram.core.method import Method, Update
from engram.core.streams import Stream
from engram.core.tree import add_scaled
from engram.guards.accounting.releases import Release
from engram.guards.changes import acted_on, arrays_of, change_of, size_of
from engram.guards.clip import near
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.refusals import Refusal
from engram.guards.row_noise import row_noise
from engram.settings.errors import Refused, RunStopped

QUICK = {"method": "fedavg", "hidden": "4", "num_clients": 4, "clients_per_round": 3}
QUICK |= {"num_rounds": 2, "local_steps": 2, "batch_size": 4, "weighting": "clients"}
QUICK |= {"max_norm": 1e9, "guards": "coarse:0.01,near:9"}
SECURE = {"aggregation": "secure", "clip": 1.0}


def register():
    """Makes the protections known."""

    @engram.guard
    def coarse(step=0.05):
        """Each number of a change is the nearest multiple of a step: fewer values leave."""

        def rounded(change):
            return {path: (x / step).round() * step for path, x in change.items()}

        def leave(at, update, kept):
            return acted_on(at, update, rounded), {}

        needs, ends = {Fact.EXACT}, {Fact.CLOSE}  # most small changes are lost
        return Guard("coarse", needs=needs, ends=ends, leave=leave)

    @engram.guard
    def near(most):
        """An update with a number that moved farther is left out."""

        def admit(at, update):
            far = max(float(x.abs().max()) for x in change_of(at, update).values())
            return Refusal("size", f"moved by {far:.2g}", update) if far > most else update

        return Guard("near", admit=admit)


if __name__ != "tests.brought.test_guard":  # a plug-in
    register()


@pytest.fixture(autouse=True)
def _known(plug_ins):
    register()


def experiment(**settings):
    from engram.settings.experiment import Experiment

    return Experiment(**QUICK | settings)


def model(folder):
    from engram.runs.run import Run

    return Run.open(folder).load_checkpoint().model


def assert_as_here(there, folder):
    """Checks a run elsewhere by one of the same settings in this process."""
    from engram.simulations.engine import simulate

    simulate(experiment(), folder)
    torch.testing.assert_close(model(there), model(folder), atol=1e-5, rtol=1e-5)


def test_a_mean_of_coarse_changes_is_a_multiple_of_the_step_over_the_clients(tmp_path):
    from tests.support import trainer

    e = experiment(num_rounds=1)
    begun = trainer(e).learner.network.initial
    run = engram.simulate(**QUICK | {"num_rounds": 1, "out": tmp_path / "run"}, progress=False)
    moved = 0
    for name, leaf in begun.items():
        steps = (run.model[name].double() - leaf.double()) * 3 / 0.01
        torch.testing.assert_close(steps, steps.round(), atol=1e-3, rtol=0)
        moved += int(steps.round().count_nonzero())
    assert moved > 10


@pytest.mark.parametrize("how", [{"engine": "sequential"}, {"cores": 2}])
def test_in_turn_and_on_all_cores_it_does_the_same(how, tmp_path):
    engram.simulate(**QUICK | how | {"out": tmp_path / "there"}, progress=False)
    assert_as_here(tmp_path / "there", tmp_path / "here")


def test_a_run_that_is_resumed_ends_as_one_at_a_stretch(tmp_path):
    from engram.simulations.engine import simulate

    simulate(experiment(num_rounds=1), tmp_path / "there")
    simulate(experiment(resume=str(tmp_path / "there")), tmp_path / "there")
    assert_as_here(tmp_path / "there", tmp_path / "here")


def test_by_its_facts_updates_are_not_compared_and_claims_are_mended():
    from engram.guards.presets import guards_of
    from engram.methods.fedavg import FedAvg
    from tests.guards.test_changes import at_of
    from tests.methods.problem import W, built

    fedavg = built(FedAvg())._replace(claims={"trace": "amount"})
    at, below = at_of(fedavg, {"model": W}), Update({"trace": torch.tensor(-1.0)}, 1.0, 1, 0)
    for facts, compared, mended in [
        ({}, True, False),
        ({"needs": {Fact.SUM}}, False, False),
        ({"ends": {Fact.EXACT}, "leave": lambda at, update, kept: (update, {})}, True, True),
    ]:
        guard = Guard("mine", **facts)
        engram.guard(lambda guard=guard: guard, "mine")
        found = guards_of(experiment(guards="mine"), fedavg, frozenset())
        assert ("norm-bound" in found.name, "distance" in found.name) == (compared, compared)
        assert (found.admit(at, below) == Update({"trace": 0.0}, 1.0, 1, 0)) == mended


def test_it_may_bound_the_rows_that_a_client_weighs_by(tmp_path):
    def alike():
        return Guard("alike", weigh=min)

    asked = QUICK | {"partition": "dirichlet", "weighting": "rows", "guards": ""}
    clients, rows, run = (
        engram.simulate(**asked | how | {"out": tmp_path / str(i)}, progress=False)
        for i, how in enumerate([{"weighting": "clients"}, {}, {"guards": alike}])
    )
    differ = 0.0
    for name, leaf in clients.model.items():
        torch.testing.assert_close(run.model[name], leaf, atol=1e-6, rtol=1e-5)
        differ += float((rows.model[name] - leaf).abs().max())
    assert differ > 1e-4


def test_what_the_server_does_not_admit_is_left_out(tmp_path):
    with pytest.raises(RunStopped, match=r"no usable reply.*moved by"):
        engram.simulate(**QUICK | {"guards": "near:1e-9", "out": tmp_path}, progress=False)


def test_it_is_refused_beside_what_it_does_not_go_with():
    def same(at, update, *kept):
        return (update, {}) if kept else update

    both = Guard("noticed", leave=same, admit=same)
    engram.guard(lambda: both, "noticed")
    engram.guard(lambda: Guard("summed", send=same), "summed")
    experiment(guards="summed", **SECURE)
    for settings, words in [
        ({"merge": "median"}, "merge = median needs .*: guards = coarse ends that"),
        (
            {"privacy": "local", "clip": 1.0},
            "guards = coarse needs that updates have no noise of their own: privacy = local ends",
        ),
        (SECURE, "guards = near needs .* by itself: aggregation = secure ends that"),
        (SECURE | {"guards": "noticed"}, "= noticed needs .* itself: aggregation = secure ends"),
        ({"guards": "summed"}, "guards = summed needs .* masked sums: aggregation is plain"),
        ({"epsilon": 3.0}, "set another privacy, or a guard that takes noise_multiplier"),
        ({"guards": "coarse:"}, "guards must be coarse:NUMBER, got 'coarse:'"),
        ({"guards": "coarser"}, "guards must be some of coarse, near, .*, from @engram.guard"),
        ({"guards": "coarse:x"}, "guards must be coarse:NUMBER, got 'coarse:x'"),
    ]:
        with pytest.raises(Refused, match=words):
            experiment(**settings)


def raising(place, found=None):
    def mine():
        return Guard("mine", **{place: lambda *given: 1 / 0 if found is None else found()})

    return mine


@pytest.mark.parametrize(
    "place", ["rows", "leave", "send", "admit", "gather", "method", "report", "bound", "releases"]
)
def test_what_it_raises_is_one_line_that_names_it_and_the_place(place, tmp_path):
    words = f"guard mine: {place} raised ZeroDivisionError: division by zero; mend it, or leave it"
    settings = QUICK | {"guards": raising(place), "clip": 1.0, "max_norm": 5.0}
    settings |= {"aggregation": "secure"} if place == "send" else {}
    with pytest.raises((RunStopped, ValueError), match=words) as caught:
        engram.simulate(**settings | {"out": tmp_path / "run"}, progress=False)
    assert "\n" not in str(caught.value)


def test_what_it_returns_in_place_of_what_is_asked_for_is_one_line_too(tmp_path):
    def none():
        return 3

    def kept():
        return Guard("kept", leave=lambda at, update, kept: (update, {"mine": update}))

    for number, (guard, words) in enumerate(
        [
            (none, "guard none must be a function that returns an engram.guards.guard.Guard, got"),
            (kept, "guard kept: leave raised ValueError: keeps must be all slots that it returns"),
            (
                raising("admit", lambda: None),
                "guard mine: admit raised TypeError: it returned nothing",
            ),
            *(
                (raising(place, lambda found=found: found), f"guard mine: {place} raised {words}")
                for place, found, words in [
                    ("releases", [Release(0.0)], "ValueError: noise-"),
                    ("releases", [1], "TypeError: it returned 1, no Release"),
                    ("method", 3, "TypeError: it returned 3, no Method; mend it"),
                    ("method", Method(None, None, None, {}), "AttributeError: "),
                    ("gather", [3], "TypeError: it returned 3, no Update or Refusal"),
                ]
            ),
        ]
    ):
        out = tmp_path / f"{number}"
        with pytest.raises((RunStopped, ValueError), match=words):
            engram.simulate(**QUICK | {"guards": guard, "out": out}, progress=False)


def test_what_it_raises_at_a_client_is_none_of_the_errors_whose_text_leaves_a_node():
    from engram.guards.users import completed
    from engram.settings.errors import EngramError

    with pytest.raises(ValueError, match="division by zero") as caught:
        completed(raising("leave")(), "mine").leave(None, None, {})
    assert not isinstance(caught.value, EngramError)


def test_its_memory_of_a_client_is_nobody_elses(tmp_path):
    seen = {"one": [], "other": []}

    def counting(name):
        def leave(at, update, kept):
            times = 1 + int(kept.get("residual", 0))
            seen[name].append(times)
            return update, {"residual": torch.tensor(times)}

        return lambda: Guard(name, keeps={"residual"}, leave=leave)

    for name in seen:
        engram.guard(counting(name), name)
    asked = QUICK | {"clients_per_round": 4, "compress": "8-bit", "guards": "one,other"}
    run = engram.simulate(**asked | {"out": tmp_path / "run"}, progress=False)
    plain = engram.simulate(**asked | {"guards": "", "out": tmp_path / "plain"}, progress=False)
    assert seen == dict.fromkeys(seen, [1] * 4 + [2] * 4)
    torch.testing.assert_close(run.model, plain.model, atol=0, rtol=0)
    with pytest.raises(ValueError, match="guards must be one once, since it keeps slots"):
        experiment(guards="one,one")


def test_its_noise_is_accounted_for_and_none_is_drawn_twice(tmp_path):
    """Two clipped changes lie up to 2 apart: mu = 2 / z in each round, of which there are two."""
    from engram.guards.accounting.guarantee import guarantee
    from engram.guards.calibration import noise_multiplier
    from engram.guards.presets import client_guards
    from tests.epsilons import gaussian

    def blurred(noise_multiplier):
        z = noise_multiplier

        def leave(at, update, kept):
            def noised(change):
                one, other = (at.normal(size_of(change), Stream.CLIENT_NOISE) for _ in range(2))
                return add_scaled(near(change, 1.0), z, arrays_of((one - other) / 2**0.5, change))

            return acted_on(at, update, noised), {}

        def releases(plan):
            return (Release(z / 2, neighbors="replaced"),)

        return Guard("blurred", alike=True, leave=leave, releases=releases)

    engram.guard(blurred)
    asked = {"guards": "blurred:4", "clients_per_round": 4}
    run = engram.simulate(**QUICK | asked | {"out": tmp_path / "run"}, progress=False)
    results = json.loads((run.folder / "results.json").read_text())
    assert results["epsilon"] == pytest.approx(gaussian(2 / 4 * 2**0.5), rel=1e-6)
    assert results["noise-multiplier"] == 2.0  # z / 2, by what it releases; the setting is 1
    e = experiment(**asked | {"guards": "blurred", "epsilon": 3.0})
    z = 2 * noise_multiplier(e)
    assert gaussian(2 / z * 2**0.5) <= 3 < gaussian(2 / (0.999 * z) * 2**0.5)
    assert f"privacy by blurred of noise-multiplier {z / 2:g} (for epsilon)" in guarantee(e)
    (same,) = client_guards(experiment(guards="blurred", noise_multiplier=4.0)).releases(None)
    assert same == Release(2.0, neighbors="replaced")
    for other in ({"standardize": "federation"}, {"patience": 1}):
        with pytest.raises(ValueError, match="without noise: guards = blurred ends that"):
            experiment(**asked | other)
    moved = torch.cat([leaf.ravel() for leaf in run.model.values()])
    assert moved.std() == pytest.approx(4 * (2 / 4) ** 0.5, rel=0.15)  # of two means of four


def test_its_uniform_numbers_are_each_clients_own_on_every_engine(tmp_path):
    """Clients that are asked in every round send u of two draws in the place of what they did."""
    engines, models = [{"engine": "sequential"}, {}, {"cores": 2}], []

    def drawn():
        def leave(at, update, kept):
            def numbers(change):
                one, other = (at.uniform(size_of(change), Stream.AUDIT) for _ in range(2))
                return arrays_of(one - other, change)

            return acted_on(at, update, numbers), {}

        return Guard("drawn", leave=leave)

    asked = QUICK | {"clients_per_round": 4, "num_rounds": 1, "guards": drawn}
    for i, how in enumerate(engines):
        out = {"out": tmp_path / str(i)}
        models.append(engram.simulate(**asked | how | out, progress=False).model)
    begun = engram.simulate(**asked | {"guards": gone, "out": tmp_path / "none"}).model
    for name, leaf in models[0].items():
        for other in models[1:]:
            torch.testing.assert_close(other[name], leaf, atol=1e-7, rtol=0)
    moved = torch.cat([(models[0][name] - begun[name]).ravel() for name in begun])
    assert moved.var() == pytest.approx(1 / 6 / 4, rel=0.15)  # of means of four clients' own


def test_a_round_of_nobody_passes_what_it_would_not_admit_of_a_client(tmp_path):
    """Rounds of four clients, each drawn with a chance of a quarter, some of them of nobody."""

    seen = set()

    def moving():
        def admit(at, update):
            seen.add(update.clients)
            moved = any(x.any() for x in change_of(at, update).values())
            return update if moved else Refusal("size", "it has not moved", update)

        return Guard("moving", admit=admit)

    asked = QUICK | {"privacy": "central", "sampling": "poisson", "clip": 1.0, "num_rounds": 6}
    asked |= {"clients_per_round": 1}
    run, plain = (
        engram.simulate(**asked | {"guards": guards, "out": tmp_path / str(i)}, progress=False)
        for i, guards in enumerate([moving, ""])
    )
    assert seen == {0, 1}
    torch.testing.assert_close(run.model, plain.model, atol=1e-5, rtol=1e-5)


def test_at_the_server_there_are_no_uniform_numbers_of_a_client(tmp_path):
    def late():
        return Guard("late", gather=lambda at, updates: at.uniform(1, Stream.AUDIT))

    with pytest.raises(RunStopped, match=r"guard late: gather .*at.uniform is not given at this"):
        engram.simulate(**QUICK | {"guards": late, "out": tmp_path}, progress=False)


def test_it_may_change_how_gradients_of_rows_are_taken(tmp_path):
    seen = []

    def rows():
        guard = row_noise(1.0, 2.0)

        def noted(objective, sums):
            seen.append(sums)
            return guard.rows(objective, sums)

        return guard._replace(rows=noted)

    engram.guard(rows)
    out = tmp_path / "run"
    run = engram.simulate(**QUICK | {"guards": rows, "clip": 1e6, "out": out}, progress=False)
    same = {"privacy": "example", "clip": 1.0, "noise_multiplier": 2.0, "guards": ""}
    usual = engram.simulate(**QUICK | same | {"out": tmp_path / "usual"}, progress=False)
    assert seen
    torch.testing.assert_close(run.model, usual.model)
    with pytest.raises(Refused, match=r"guards = rows needs .* privacy = example ends that"):
        engram.simulate(**QUICK | same | {"guards": rows}, progress=False)
    with pytest.raises(Refused, match=r"guards = rows needs .* guards = rows ends that"):
        engram.simulate(**QUICK | {"guards": "rows,rows", "clip": 1.0}, progress=False)


def test_a_run_of_a_version_without_guards_goes_on():
    assert "guards" not in experiment(guards="").identity()
    assert experiment().identity()["guards"] == QUICK["guards"]


def gone():
    def nothing(change):
        return {path: 0 * x for path, x in change.items()}

    return Guard("gone", leave=lambda at, update, kept: (acted_on(at, update, nothing), {}))
