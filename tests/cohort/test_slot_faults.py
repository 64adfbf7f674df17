"""Faults of a method's slots: each is told in one line, before any client is trained by it."""

import re
from types import SimpleNamespace

import pytest
import torch

import engram
from engram.cohort.trainer.chunks import ClientFailed
from engram.core import Client, FromMean, Method, Phase, Served, Server, kinds_of, replace, sends
from engram.settings.errors import EngramError
from engram.simulations.engine import simulate
from tests.samples import entry
from tests.support import initial_model, small, trainer

pytestmark = pytest.mark.usefixtures("plug_ins")

LINE = r"test_slot_faults\.py, line \d+"

# One of its parts is replaced by one that is at fault.
RIGHT = {
    "begin": lambda received, kept, batch: received | kept,
    "moved": lambda work: work,
    "directed": lambda directions: directions,
    "end": lambda work: ({"model": work["model"]}, {"count": work["count"]}),
    "serve": lambda received, kept: Served((received["model"],)),
    "merge": replace,
    "fractions": (0.5, 1.0),
    "kinds": kinds_of(models="model", statistics="count later"),
}


def registered(wrong):
    parts = SimpleNamespace(**RIGHT | wrong)

    @engram.method("mine")
    class Mine:
        eta: float = 0.1

        def build(self, context):
            def direction(work, batches):
                g = context.objective.gradient(work["model"], batches[0])
                moved = parts.moved(work | {"count": work["count"] + 1})
                return parts.directed({"model": g}), moved

            return Method(
                Server({"model": context.network.initial}, sends("model"), FromMean(parts.merge)),
                Client(
                    begin=parts.begin,
                    phases=tuple(Phase(direction, self.eta, fraction=f) for f in parts.fractions),
                    end=lambda received, work: parts.end(work),
                    sends={"model"},
                    start={"count": torch.zeros(2)},
                ),
                serve=lambda received, kept, trained: parts.serve(received, kept),
                kinds=parts.kinds,
            )


def lacking(model):
    return dict(list(model.items())[1:])


def longer(model):
    return {name: torch.zeros(7) for name in model}


NETWORK = "must be of the names and shapes of the network, got"
LONGER = r"'\S+' of shape \(7,\) in place of shape \([\d, ]+\)"
FAULTS = {
    "returned other than begun with": (
        {"moved": lambda work: {"model": work["model"]}},
        "slots that phase 0 returns must be the same as before, count, model, got model",
    ),
    "returned more than begun with": (
        {"moved": lambda work: work | {"more": torch.zeros(())}},
        "slots that phase 0 returns must be the same as before, count, model, "
        "got count, model, more",
    ),
    "of another shape": (
        {"moved": lambda work: work | {"count": torch.zeros(3)}},
        "slot 'count' that phase 0 returns must be of the names and shapes of the slot before, "
        r"got shape \(3,\) in place of shape \(2,\)",
    ),
    "a direction of another shape": (
        {"directed": lambda d: {"model": longer(d["model"])}},
        "direction of phase 0 for slot 'model' must be of the names and shapes of the slot, "
        f"got {LONGER}",
    ),
    "a direction of no slot": (
        {"directed": lambda d: {"other": d["model"]}},
        "slots that phase 0 moves must be among those that it works on, count, model, got other",
    ),
    "undeclared kind": (
        {"begin": lambda received, kept, batch: received | kept | {"mine": torch.zeros(())}},
        "slots that begin returns must be among those whose kinds are declared, "
        "count, later, model, got count, mine, model",
    ),
    "undeclared slot sent": (
        {"end": lambda work: (dict(work), {"count": work["count"]})},
        "slots that leave must be those that Client.sends declares, model, got count, model",
    ),
    "sent in another shape": (
        {"end": lambda work: ({"model": longer(work["model"])}, {})},
        "slot 'model' that leaves must be of the names and shapes of the received slot, "
        f"got {LONGER}",
    ),
    "kept in another shape": (
        {"end": lambda work: ({"model": work["model"]}, {"count": torch.zeros(1)})},
        "slot 'count' that is kept must be of the names and shapes of Client.start, "
        r"got shape \(1,\) in place of shape \(2,\)",
    ),
    "a served model that lacks parameters": (
        {"serve": lambda received, kept: Served((lacking(received["model"]),))},
        rf"served model 0 {NETWORK} none called '\S+'",
    ),
    "a served model that is a statistic": (
        {"serve": lambda received, kept: Served((kept["count"],))},
        rf"served model 0 {NETWORK} shape \(2,\) in place of parameters",
    ),
    "nothing served": (
        {"serve": lambda received, kept: received["model"]},
        "what serve returns must be Served with one model, or several, got dict",
    ),
    "weights of other models": (
        {"serve": lambda received, kept: Served((received["model"],), weights=torch.ones(2))},
        r"Served.weights must be of shape \(1,\), got shape \(2,\)",
    ),
}
FRACTIONS = "fractions of phases must be positive, and leave each phase some of 1000 steps, got"
REGISTERED = [
    ({"fractions": ()}, ": phases must be one or more, got none"),
    ({"fractions": (0.0, 1.0)}, rf": {FRACTIONS} \[0.0, 1.0\]"),
    # These leave others no steps.
    ({"fractions": (1.0, 0.5, 1.0)}, rf": {FRACTIONS} \[1.0, 0.5, 1.0\]"),
    (
        {"kinds": kinds_of(statistics="count")},
        ": kinds must have a kind of each slot, got none of model",
    ),
    ({"begin": lambda *given: fails()}, f" must be one .*, got KeyError: 'modle' .{LINE}, in f.+"),
]


def test_a_slot_that_is_not_as_declared_is_told_in_one_line(tmp_path):
    # Faults of phases alone are seen with the first client's rows, all others before a run.
    def tried(fault, engine):
        registered(FAULTS[fault][0])
        simulate(small(method="mine", num_clients=4), tmp_path / fault / engine, engine=engine)

    for engine in ("sequential", "vectorized"):
        for fault, (_, words) in FAULTS.items():
            with entry(engine, fault):
                with pytest.raises((ValueError, EngramError)) as told:
                    tried(fault, engine)
                assert re.search(rf"method mine, client \d+: {words}", str(told.value)), told.value
                assert "\n" not in str(told.value)


def test_faults_without_data_are_told_when_the_method_is_registered():
    for wrong, words in REGISTERED:
        with entry(wrong), pytest.raises(ValueError, match=f"^method mine{words}$"):
            registered(wrong)


def test_a_round_of_too_few_steps_for_its_phases_is_refused(tmp_path):
    registered({"fractions": (0.9, 0.05, 1.0)})
    words = FRACTIONS.replace("1000", "3")
    with pytest.raises(EngramError, match=f"^method mine: {words}"):
        simulate(small(method="mine", local_steps=3), tmp_path / "run")
    assert simulate(small(method="mine", local_steps=20), tmp_path / "run")


def test_a_client_is_named_as_it_is_called():
    registered(FAULTS["of another shape"][0])
    t = trainer(small(method="mine"))
    t.data = t.data._replace(names={3: "berlin"})
    with pytest.raises(ClientFailed, match=r"^method mine, client berlin: slot 'count' that phase"):
        t.train(initial_model(t), [[3, 4]], server_round=1, durable=0)


def test_slots_of_a_later_round_are_looked_at_too(tmp_path):
    def end(work):
        return {"model": work["model"]}, {"count": work["count"], "later": work["count"]}

    def moved(work):  # the slot that was not there in the first round is lost
        return {slot: work[slot] for slot in ("model", "count")}

    registered({"end": end, "moved": moved})
    words = (
        r"client \d+: slots that phase 0 returns must be the same as before, count, later, model"
    )
    with pytest.raises(EngramError, match=f"^round 2 .*method mine, {words}"):
        simulate(small(method="mine", clients_per_round=20), tmp_path / "run")


def test_a_merge_that_returns_other_slots_ends_the_run(tmp_path):
    for folder, merge, words in [
        (
            "a",
            lambda server, mean: {},
            "slots that merge returns must be the same as before, model",
        ),
        (
            "b",
            lambda server, mean: {"model": lacking(mean.slots["model"])},
            "slot 'model' that merge returns must be of the names and shapes of the slot before, "
            "got none called 'dense0.weight'",
        ),
    ]:
        registered({"merge": merge})
        with entry(words), pytest.raises(EngramError, match=f"method mine, server: {words}"):
            simulate(small(method="mine"), tmp_path / folder)


def test_a_function_that_fails_on_a_network_is_told_in_one_line(tmp_path):
    def begin(received, kept, batch):
        if "dense0.weight" in received["model"]:  # no such name is in the network of the registry
            raise KeyError("nothing")
        return received | kept

    registered({"begin": begin})
    words = (
        "method mine must be one whose functions run on this network's slots, without values, got"
    )
    with pytest.raises(EngramError, match=rf"^{words} KeyError: 'nothing' \({LINE}, in begin\)$"):
        simulate(small(method="mine"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def fails(*given):
    raise KeyError("modle")


def branches(directions):
    if next(iter(directions["model"].values())).sum() > 0:
        return directions
    return directions


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"merge": fails}, f"method mine, server: merge raised KeyError: 'modle' .{LINE}, in f"),
        (
            {"directed": branches},
            f"method mine, round 1: RuntimeError: vmap: .*control flow .{LINE}, in branches.; "
            "functions .* cannot look at values.*torch.where, or the engine sequential",
        ),
    ],
)
def test_a_function_that_raises_in_a_round_is_told_by_method_line_and_cause(wrong, words, tmp_path):
    registered(wrong)
    with pytest.raises(EngramError, match=words):
        simulate(small(method="mine"), tmp_path / "run")


def test_in_turn_a_function_that_raises_is_told_by_its_client_too(tmp_path):
    def directed(directions):
        if not next(iter(directions["model"].values())).is_meta:
            fails()
        return directions

    registered({"directed": directed})
    words = f"client .* failed in round 1 at step 1: KeyError.'modle'. in method mine .{LINE}, in f"
    with pytest.raises(EngramError, match=words):
        simulate(small(method="mine"), tmp_path / "run", engine="sequential")
