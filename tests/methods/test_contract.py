"""Contracts that every method meets, one client after the other and all at once."""

import importlib
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_map

import engram
from engram.cohort.round import Cohort, Problem
from engram.cohort.sequential import in_turn
from engram.cohort.vmapped import at_once
from engram.core.contract import Contract
from engram.core.method import FromMean, Served
from engram.core.method_shapes import WITHOUT_DATA, shapes_of
from engram.core.personal_parameters import build
from engram.core.rounds import Stepper, first_steps
from engram.core.settings import METHODS, about
from engram.core.slot_optimizers import SGD
from engram.core.slots import mean_of
from engram.core.tree import stacked
from tests.methods.problem import (
    COHORTS,
    HEAD,
    OBJECTIVES,
    SHAPES,
    built,
    context_of,
    draws_of,
    in_layers,
    one,
    run,
    run_round,
    served,
)
from tests.samples import EIGHT

for _file in (Path(engram.__file__).parent / "methods").glob("[a-z]*.py"):
    importlib.import_module(f"engram.methods.{_file.stem}")

CASES = {name: cls() for name, cls in METHODS.items() if cls.__module__.startswith("engram.")}
CASES |= {
    "apfl, adaptive": METHODS["apfl"](alpha=0.4, adaptive=True),
    "local-moml, carried": METHODS["local-moml"](alpha=0.1, memory="carry", hessian="exact"),
    "local-moml, differences": METHODS["local-moml"](alpha=0.1, hessian="finite-difference"),
    "fedala, half": METHODS["fedala"](weight_share=0.5),
    "scaffold, half": METHODS["scaffold"](server_eta=0.5),
}
del CASES["fedbn"]  # the network has no batch norm
CLOSE = {"rtol": 1e-3, "atol": 1e-5}


@pytest.mark.parametrize("name", CASES)
def test_every_method_meets_the_contract(name):
    found = run(CASES[name])
    assert_close(run(CASES[name], at_once)[1:], found[1:], **CLOSE)
    if _affine(name):  # its phases run on stacked clients as they are
        assert_close(run(CASES[name], in_layers)[1:], found[1:], **CLOSE)
    check_slots_are_declared_and_keep_their_names_and_shapes(*found)
    check_a_round_writes_to_none_of_its_inputs(CASES[name])
    check_what_leaves_is_what_is_declared(CASES[name])
    check_every_client_is_served_whether_or_not_it_has_trained(CASES[name])
    check_shapes_without_data_are_those_of_a_round(name)
    if not about(CASES[name]).personal and name not in ("fedpac", "floco"):  # which mix heads
        check_personal_parameters_never_leave(CASES[name])


def _affine(name):
    return all(phase.affine for phase in built(CASES[name]).client.phases)


def check_slots_are_declared_and_keep_their_names_and_shapes(method, server, memories):
    assert server.keys() == method.server.start.keys()
    common, own = method.server.send(server, [2])
    received = common | one(own, 0)
    kept = memories.get(2, method.client.start)
    assert method.kinds.keys() >= {*server, *received, *kept}
    before = method.client.begin(received, kept, _first_batch(method))
    assert method.kinds.keys() >= before.keys()
    assert _shapes(server) == _shapes(method.server.start)
    for slot in kept.keys() & method.client.start.keys():
        assert _shapes(kept[slot]) == _shapes(method.client.start[slot]), slot


def _first_batch(method):
    rows = draws_of(method, 9, [2])
    return one(rows.initial_batch(), 0) if method.client.initial_rows else None


def _shapes(slots):
    return tree_map(lambda leaf: leaf.shape, slots)


def check_a_round_writes_to_none_of_its_inputs(settings):
    method, server, memories = run(settings, cohorts=COHORTS[:1])
    copies = tree_map(torch.clone, (server, memories))
    run_round(method, in_turn, server, memories, 2, COHORTS[1])
    assert_close((server, memories), copies, rtol=0, atol=0)


def check_what_leaves_is_what_is_declared(settings):
    method = built(settings)
    sent = []

    def leaving(client, received, slots):
        sent.append(slots.keys())
        return slots

    run_round(method, in_turn, method.server.start, {}, 1, [0, 3], leaving=leaving)
    assert sent == [method.client.sends] * 2


def check_every_client_is_served_whether_or_not_it_has_trained(settings):
    method, server, memories = run(settings, cohorts=([0, 1, 2], [5, 0]))
    for client in (0, 3):
        found = served(method, server, memories, client)
        assert isinstance(found, Served)
        assert all(model.keys() == SHAPES.keys() for model in found.models)
        assert found.weights is None or abs(float(found.weights.sum()) - 1) < 1e-6


def check_shapes_without_data_are_those_of_a_round(name):
    context = context_of()
    method = build(CASES[name], context._replace(objective=WITHOUT_DATA))
    found = shapes_of(Contract(name, method, context.network.initial))
    made, seen = built(CASES[name]), []

    def leaving(client, received, sent):
        seen.append((received, sent))
        return sent

    start = made.server.start
    assert_close(method.server.start, start)
    _, memories = run_round(made, in_turn, start, {}, 1, [2], leaving=leaving)
    expected = (*seen[0], memories[2])
    assert _shapes((found.received, found.sent, found.kept)) == _shapes(expected)


def check_personal_parameters_never_leave(settings):
    method, server, memories = run(settings, personal=HEAD)
    same = run(settings, at_once, personal=HEAD)
    assert_close((server, memories), same[1:], **CLOSE)
    passed = []

    def leaving(client, received, sent):
        passed.extend([received, sent])
        return sent

    run_round(method, in_turn, server, memories, 9, [2], leaving=leaving)
    for slots in passed:
        assert not any(HEAD & slot.keys() for slot in slots.values() if isinstance(slot, dict))
    for client in (2, 0):
        found = served(method, server, memories, client)
        assert all(model.keys() == SHAPES.keys() for model in found.models)


def test_who_has_not_trained_is_fine_tuned_where_parameters_are_personal():
    method, server, memories = run(CASES["fedavg"], personal=HEAD, cohorts=[[1]])
    assert served(method, server, memories, 3).tuned
    assert not served(method, server, memories, 1).tuned


def _merges_a_mean(name):
    return name in CASES and isinstance(built(CASES[name]).server.merge, FromMean)


def test_a_mean_may_be_taken_in_parts():
    for name in ("fednova", *filter(_merges_a_mean, EIGHT)):
        method = built(CASES[name])

        def in_parts(updates, by=method.server.merge.by):
            first, *others = updates
            return [mean_of(some, by) for some in ([first], others)]

        start = method.server.start
        whole = run_round(method, in_turn, start, {}, 1, COHORTS[2])
        parts = run_round(method, in_turn, start, {}, 1, COHORTS[2], gathered=in_parts)
        assert_close(parts[0], whole[0], **CLOSE, msg=name)


def test_phases_share_the_steps():
    phases = built(METHODS["fedrep"](personal_share=0.07)).client.phases
    assert first_steps(phases, 100) == [0, 7]
    assert first_steps(phases, 10) == [0, 1]  # rounded up
    assert first_steps(phases, 1) == [0, 0]
    assert first_steps(phases, 0) == [0, 0]


@pytest.mark.parametrize("way", [at_once, in_layers])
@pytest.mark.parametrize(
    ("name", "field", "slot"),
    [("ditto", "lambda_", "own"), ("fedprox", "mu", "model"), ("mr-mtl", "lambda_", "own")],
)
def test_settings_of_several_runs_are_one_more_axis(name, field, slot, way):
    plain = {"eta": 0.1, field: 0.7}

    def build_with(scales):
        return built(METHODS[name](**plain | scales), way)

    method, reported = build_with({}), OBJECTIVES[way].loss
    start, twice = method.client.start, draws_of(method, 1, [1, 1])
    problem = Problem(build_with, Stepper(SGD).take, reported)
    cohort = Cohort(method.server.start, {}, stacked([start, start]), [], twice)
    scales = {"eta": torch.tensor([0.1, 0.05]), field: torch.tensor([0.0, 0.7])}
    done = way(problem, cohort._replace(scales=scales))
    for row in range(2):
        settings = METHODS[name](**{key: float(column[row]) for key, column in scales.items()})
        _, server, memories = run(settings, cohorts=[[1]])
        alone = memories[1] if slot == "own" else server
        found = (done.kept if slot == "own" else done.sent).stack()
        assert_close(one(found[slot], row), alone[slot], **CLOSE)


def test_settings_are_in_their_ranges_and_have_meanings():
    for name, cls in METHODS.items():
        assert cls.__doc__.endswith("."), name
        assert about(cls).source, name
        with pytest.raises(ValueError, match="must be"):
            pytest.fail(f"{name} takes {cls(eta=-1.0)}")
