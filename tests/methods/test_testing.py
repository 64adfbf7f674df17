"""`engram.testing`: every method of ours keeps the contract, and what breaks it is told."""

import re
from typing import Annotated

import pytest
import torch
from annotated_types import Gt

import engram
from engram.core import (
    Client,
    FromMean,
    Method,
    Phase,
    Served,
    Server,
    add_scaled,
    kinds_of,
    replace,
    sends,
)
from engram.core.tree import multiplied
from engram.methods.fedavg import FedAvg
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.families import METHODS
from engram.testing import check_method
from tests.networks.test_modules import EVERYWHERE
from tests.samples import EIGHT, entry
from tests.support import ANY_NETWORK
from tests.tables.survival.figures import HERE

TABLES = {
    "cox": {
        "dataset": f"csv:{HERE / 'veteran.csv'}",
        "task_column": "site",
        "schema": 'columns.event.role = "event"\ncolumns.time.role = "time"',
        "num_clients": 4,
    },
    "meta-ban": {"dataset": "linear-groups"},
    "molar": {"dataset": "sparse-linear"},
    "molar-bandit": {"dataset": "sparse-linear"},
}
QUICK = (*EIGHT[1:], *TABLES)  # of a mean of models, the others are more


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        pytest.param(name, settings, marks=() if name in QUICK else pytest.mark.full)
        for name, settings in (
            # Others' modules are stacked, and compared, in tests/cohort/test_local_training.py.
            *((name, {} if name in EVERYWHERE else {"model": "mlp"}) for name in ANY_NETWORK),
            ("fedbn", {"model": "resnet", "hidden": "4"}),
            *TABLES.items(),
            ("local-moml", {"memory": "carry", "model": "linear"}),
            ("fedavg", {"personal": "dense1.*", "model": "mlp"}),
        )
    ],
    ids=str,
)
def test_our_methods_keep_the_contract(method, settings):
    check_method(method, **settings)


# Each is wrong in one way. What is wrong with the first is visible in several.


def noisy(objective, w, batch):
    return {n: g + 0.1 * torch.rand(()) for n, g in objective.gradient(w, batch).items()}


def in_place(objective, w, batch):
    g = objective.gradient(w, batch)
    for name, leaf in w.items():
        leaf.sub_(0.01 * g[name])
    return g


def branching(objective, w, batch):
    g = objective.gradient(w, batch)
    far = sum(leaf.square().sum() for leaf in g.values()) > 1
    return multiplied(g, 0.5 if far else 1.0)


def by_formula(objective, w, batch):
    del objective
    inputs, _, *_ = batch
    return {n: leaf * inputs.flatten(1).mean().item() for n, leaf in w.items()}


def counting(objective, w, batch):
    CALLS.append(None)
    return multiplied(objective.gradient(w, batch), 1 / len(CALLS))


def failing(objective, w, batch):
    raise RuntimeError("two\nlines")


def plain(objective, w, batch):
    return objective.gradient(w, batch)


def hidden_momentum():
    velocity = {}

    def merge(server, mean):
        change = add_scaled(mean.slots["model"], -1.0, server["model"])
        last = velocity.get("last", change)
        velocity["last"] = add_scaled(change, 0.5, last)
        return {"model": add_scaled(server["model"], 1.0, velocity["last"])}

    return merge


CALLS = []
EVERY = {"pure: expected direction", "vectorizes", "resumes", "lost replies"}


def registered(direction=plain, merge=lambda: replace, moved=lambda work: work):
    """A method whose parts may be wrong."""

    @engram.method("wrong")
    class Wrong:
        eta: float = 0.05

        def build(self, context):
            def move(work, batches):
                return {"model": direction(context.objective, work["model"], batches[0])}, moved(
                    work
                )

            return Method(
                Server({"model": context.network.initial}, sends("model"), FromMean(merge())),
                Client(
                    begin=lambda received, kept, batch: received,
                    phases=(Phase(move, self.eta),),
                    end=lambda received, work: ({"model": work["model"]}, {}),
                    sends={"model"},
                ),
                serve=lambda received, kept, trained: Served((received["model"],)),
                kinds=kinds_of(models="model", statistics="extra"),
            )


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize(
    ("wrong", "violated"),
    [
        ({"direction": noisy}, EVERY),
        ({"direction": in_place}, EVERY),  # it moves the server's own model
        ({"direction": branching}, {"vectorizes"}),
        ({"direction": by_formula}, {"vectorizes"}),
        ({"direction": counting}, EVERY),
        ({"merge": hidden_momentum}, {"pure: expected merge", "resumes"}),
        ({"direction": failing}, {"runs"}),
        ({"moved": lambda work: work | {"extra": torch.zeros(())}}, {"slots: expected slots that"}),
    ],
)
def test_each_property_that_is_violated_is_a_line(wrong, violated):
    registered(**wrong)
    with pytest.raises(AssertionError) as told:
        check_method("wrong")
    lines = str(told.value).splitlines()
    for line in lines:
        assert re.fullmatch(r"[a-z ]+: expected .+; got .+", line), line
    assert len(lines) == len(violated), lines
    assert all(any(line.startswith(name) for line in lines) for name in violated), lines


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(Refused, match="eta must be"):
        check_method("fedavg", eta=-1.0)
    with pytest.raises(Refused, match="method must be one of"):
        check_method("nothing")


@pytest.mark.usefixtures("plug_ins")
def test_a_class_that_is_no_method_is_refused():
    for name, fields, words in [
        ("", {}, "name must be small letters, digits and hyphens, got ''"),
        ("My method", {}, "name must be small letters, digits and hyphens, got 'My method'"),
        ("mine", {"seed": 0}, "a setting of mine must be one with a default, and not the"),
        ("mine", {"pace": ...}, "a setting of mine must be one with a default, and not"),
        ("mine", {"words": "text"}, "type of mine.words must be float, int, bool or a Literal"),
        ("fedavg", {}, "name must be a name that no other method has, got 'fedavg'"),
    ]:
        own = {"__annotations__": {key: type(value) for key, value in fields.items()}}
        own |= {key: value for key, value in fields.items() if value is not ...}
        with entry(name, fields), pytest.raises(ValueError, match=re.escape(words)):
            engram.method(name)(type("Mine", (FedAvg,), own))


@pytest.mark.usefixtures("plug_ins")
def test_a_methods_docstring_says_what_it_means():
    @engram.method("mine")
    class Mine(FedAvg):
        """Steps along signs.

        And more.
        """

        eta: Annotated[float, Gt(0), "step size"] = 0.1

    assert METHODS["mine"].meaning == "Steps along signs"
    assert METHODS["mine"].step_sizes() == ["mine.eta"]
    with pytest.raises(Refused, match=r"mine.eta must be a finite number, got nan"):
        Experiment(method="mine", eta=float("nan"))
    with pytest.raises(Refused, match=r"mine.eta must be greater than 0, got -1.0"):
        Experiment(method="mine", eta=-1.0)
