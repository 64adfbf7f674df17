"""Runs whose messages have fewer bytes: refusals, all methods, records, resuming and nodes."""

import pytest
import torch

from engram.client.disk_memory import DiskStore
from engram.core.method import Update
from engram.guards.merge import Merge
from engram.guards.noise import simulated_noise
from engram.runs.run import Run
from engram.settings.errors import EngramError, Refused
from engram.settings.experiment import Experiment
from engram.settings.families import METHODS
from engram.settings.network import NetworkMethod
from engram.simulations.engine import simulate
from tests.samples import EIGHT, entry
from tests.support import grid, initial_model, small, strategy_of, train_clients, trainer

_NETWORKS = [name for name, made in METHODS.items() if issubclass(made, NetworkMethod)]
_OWN = "which sends each client a model of its own"
_REFUSED = {
    **dict.fromkeys(["cfl", "fedamp", "fedfomo", "fedpac", "floco", "pfedhn"], _OWN),
    **dict.fromkeys(["fedproto", "local"], "whose clients send no model"),
}
_TIMES = {"ms", "checksum"}


def outcome(e, folder, **how):
    """Rows without times, and the last model and memories."""
    simulate(e, folder, **how)
    record = Run.open(folder)
    rows = [{k: v for k, v in row.items() if k not in _TIMES} for row in record.rows()]
    last = record.load_checkpoint()
    return rows, {name: leaf.tolist() for name, leaf in last.model.items()}, last.memories


NOT_TOGETHER = [  # beside the pairs of unfit.txt
    (
        {"merge": "krum", "compress": "low-rank"},
        "merge = krum needs .* what its client computed: compress = low-rank ends",
    ),
    ({"compress": "low-rank:0.3"}, "compress must be low-rank:NUMBER, a whole number, above 0 and"),
    ({"compress": "low-rank:2.5"}, "compress must be low-rank:NUMBER, a whole number, above 0 and"),
    ({"compress": "top-k:0.6"}, "compress must be top-k:NUMBER, above 0 and at most 0.5, got"),
    ({"compress": "8-bit:3"}, "compress must be 8-bit, without a number, got '8-bit:3'"),
    ({"compress": "top-kk"}, r"compress must be one of none, 8-bit, .* \(did you mean top-k"),
]


def test_what_does_not_go_with_fewer_bytes_is_refused():
    for settings, words in NOT_TOGETHER:
        with entry(settings, words), pytest.raises(Refused, match=words):
            Experiment(**{"compress": "8-bit", "method": "fedavg", **settings})


def test_methods_whose_clients_have_no_common_model_to_change_are_refused_by_name(tmp_path):
    for method, why in _REFUSED.items():
        says = f"compress must be none for {method}, {why}"
        with entry(method), pytest.raises(Refused, match=says):
            simulate(small(method=method, compress="8-bit"), tmp_path / method)


@pytest.mark.parametrize("method", [name for name in EIGHT if name not in _REFUSED])
def test_other_methods_run_in_fewer_bytes(tmp_path, method):
    settings = {"method": method, "compress": "8-bit", "num_rounds": 2}
    if method == "fedbn":  # which needs a network with batch norm
        settings |= {"model": "resnet", "norm": "batch"}
    rows, _, _ = outcome(small(**settings), tmp_path)
    assert rows[-1]["clients"] == 4
    assert rows[-1]["bytes-sent"] > 0
    assert rows[-1]["bytes-received"] > 0


@pytest.mark.parametrize("compress", ["8-bit", "top-k", "low-rank"])
def test_a_run_without_messages_is_that_with_messages_and_with_workers(tmp_path, compress):
    e = small(method="scaffold", compress=compress, num_rounds=5, clip=1.0)
    rows, model, memories = outcome(e, tmp_path / "direct")
    again, same, kept = outcome(e, tmp_path / "messages", through=lambda host: host)
    assert (again, same) == (rows, model)
    whole = compress == "8-bit"  # else clients keep what changes are of, too
    assert (kept == memories) == whole


@pytest.mark.parametrize("compress", ["4-bit", "top-k"])
def test_a_run_that_is_resumed_gives_the_same_numbers(tmp_path, compress):
    e = small(method="local-moml", compress=compress, num_rounds=4, clients_per_round=8)
    rows, model, memories = outcome(e, tmp_path / "whole")
    first = e.model_copy(update={"num_rounds": 2})
    simulate(first, tmp_path / "parts")
    again = e.model_copy(update={"resume": str(tmp_path / "parts")})
    assert outcome(again, tmp_path / "parts") == (rows, model, memories)


def test_bytes_follow_from_what_each_client_has_missed(tmp_path):
    e = small(method="fedavg", compress="top-k", num_rounds=6, clients_per_round=6, hidden="64")
    rows, model, _ = outcome(e, tmp_path)
    count = sum(torch.tensor(leaf).numel() for leaf in model.values())
    shapes = {path: torch.tensor(leaf).shape for path, leaf in model.items()}
    # A hundredth of each array, rounded up: 4 bytes a number, and 1 or 2 for its place.
    size = sum(-(-s.numel() // 100) * (6 if s.numel() > 256 else 5) for s in shapes.values())
    held = {}
    for number, row in enumerate(rows[1:]):
        missed = [number - held[c] if c in held else None for c in row["cohort"]]
        most = (4 * count - 1) // size
        sizes = [4 * count if m is None or m > most else m * size for m in missed]
        assert row["bytes-sent"] == sum(sizes)
        assert row["bytes-received"] == size * len(row["cohort"])
        held |= dict.fromkeys(row["cohort"], number)


def test_no_decoded_update_moves_a_private_mean_by_more_than_clip():
    settings = {"privacy": "central", "clip": 0.1, "noise_multiplier": 1e-6}
    e = small(method="fedavg", compress="top-k", clients_per_round=4, **settings)
    t = trainer(e)
    merge = Merge(e, t.method, frozenset(), simulated_noise(1))
    server = merge.method.server.start
    far = {"model": {name: leaf + 100 for name, leaf in server["model"].items()}}
    after = merge(server, [Update(far, 1, 1, 0)], 1)
    left = after["broadcast-residual-model"]
    moved = [
        (after["model"][n] + left.get(n, 0) - x).square().sum() for n, x in server["model"].items()
    ]
    assert sum(moved) ** 0.5 <= 0.1 / 4 * 1.01  # of the four that were asked
    assert sum(moved) ** 0.5 >= 0.1 / 4 * 0.99


def test_changes_of_slots_that_no_client_holds_are_refused():
    t = trainer(small(method="fedavg", compress="top-k"))
    code = torch.zeros((1, 8), dtype=torch.uint8)
    with pytest.raises(EngramError, match="changes must be of slots that a client here received"):
        t.sending.received({"code": code}, 3, [0], server_round=4)


def test_an_update_that_is_no_code_is_refused_and_no_node_adds_up_codes():
    e = small(method="fedavg", compress="top-k", hidden="64")
    t = trainer(e)
    merge, shapes = Merge(e, t.method, frozenset()), t.shapes
    assert not merge.combines
    at = merge.at(merge.method.server.start, 1)._replace(like=shapes.sent)
    sent, kept = merge.guard.leave(at, Update(initial_model(t), 1, 1, 0), {})
    assert kept.keys() == {"residual"}
    here, code = merge.guard.arrive(at, sent), sent.slots["code"]
    assert here.slots.keys() == {"model"}
    there = merge.guard.arrive(at, sent._replace(slots={"code": code.clone()}))  # bytes alone
    for name, leaf in here.slots["model"].items():
        assert torch.equal(there.slots["model"][name], leaf)
    high = torch.full_like(code, 255)
    for wrong, words in ((code[1:], "code must have"), (high, "places must be ascending")):
        found = merge.guard.arrive(at, sent._replace(slots={"code": wrong}))
        assert found.kind == "malformed"
        assert found.reason.startswith(words)
    assert merge.guard.arrive(at, sent._replace(slots={})).kind == "malformed"


def test_a_reply_of_impossible_codes_is_left_out():
    e = small(method="fedavg", compress="top-k", hidden="64", clients_per_round=10)
    nodes = grid(trainer(e), 10)
    strategy, model = strategy_of(e, nodes)
    asked = list(strategy.configure_train(1, model, {}, nodes))
    replies = nodes.ask(asked, timeout=60)
    for reply in replies[:3]:
        arrays = reply.content["arrays"]
        (name,) = arrays
        reply.content["arrays"] = {name: torch.full_like(arrays[name], 255)}
    _, metrics = strategy.aggregate_train(1, replies)
    assert metrics["rejected-malformed"] == 3
    assert metrics["clients"] == 7


def test_a_residual_is_kept_on_disk(tmp_path):
    e, store = small(method="fedavg", compress="4-bit"), DiskStore(tmp_path)
    t = trainer(e, store)
    common = initial_model(t)
    train_clients(t, common, [0, 1], server_round=1, durable=0)
    kept = store.load(0, before=2)
    assert {name.split("/")[1] for name in kept} == {"residual"}
    once = train_clients(trainer(e, DiskStore(tmp_path)), common, [0, 1], server_round=2, durable=0)
    assert store.load(0, before=3).keys() == kept.keys()
    nothing = {name: torch.zeros_like(x) for name, x in kept.items()}
    store.save(0, nothing, server_round=1, durable=0)
    again = trainer(e, DiskStore(tmp_path))
    other = train_clients(again, common, [0, 1], server_round=2, durable=0)
    ours, theirs = (x.slots["model"]["dense0.weight"] for x in (once, other))
    assert not ours[0].equal(theirs[0])
    assert ours[1].equal(theirs[1])
