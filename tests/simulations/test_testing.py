"""`engram.testing`: every method of ours keeps the contract, and what breaks it is told."""

import re

import pytest
import torch
from pydantic import create_model

import engram
from engram.aggregates import Aggregate, weighted_mean
from engram.meta.fedavg import fedavg
from engram.testing import check_method
from engram.tree import add_scaled
from federation.errors import Refused
from federation.methods import METHODS, family
from tests.client.test_modules import EVERYWHERE
from tests.support import ANY_NETWORK

TABLES = {
    "meta-ban": {"dataset": "linear-groups"},
    "molar": {"dataset": "sparse-linear"},
    "molar-bandit": {"dataset": "sparse-linear"},
}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        # Others' modules are stacked, and compared, in tests/client/test_local_training.py.
        *((name, {} if name in EVERYWHERE else {"model": "mlp"}) for name in ANY_NETWORK),
        ("fedbn", {"model": "resnet", "hidden": "4"}),
        *((name, TABLES[name]) for name in METHODS if name not in family("local")),
        ("local-moml", {"memory": "carry", "model": "linear"}),
        ("fedavg", {"personal": "dense1.*", "model": "mlp"}),
    ],
    ids=str,
)
def test_our_methods_keep_the_contract(method, settings):
    check_method(method, **settings)


# Each is wrong in one way. What is wrong with the first is visible in several.


def noisy(gradient, eta):
    def step(w, u, batches):
        g = gradient(w, batches[0])
        return {n: x - eta * (g[n] + 0.1 * torch.rand(())) for n, x in w.items()}, u

    return step


def in_place(gradient, eta):
    def step(w, u, batches):
        g = gradient(w, batches[0])
        return {name: leaf.sub_(eta * g[name]) for name, leaf in w.items()}, u

    return step


def branching(gradient, eta):
    def step(w, u, batches):
        g = gradient(w, batches[0])
        far = sum(leaf.square().sum() for leaf in g.values()) > 1
        return add_scaled(w, -eta / 2 if far else -eta, g), u

    return step


def by_shape(gradient, eta):
    def step(w, u, batches):
        g = gradient(w, batches[0])  # of all clients at once where it comes by formulas
        return {n: x - eta * g[n] / g[n].norm() for n, x in w.items()}, u

    return step


def counting(gradient, eta):
    calls = []

    def step(w, u, batches):
        calls.append(None)
        return add_scaled(w, -eta / len(calls), gradient(w, batches[0])), u

    return step


def failing(gradient, eta):
    def step(w, u, batches):
        raise RuntimeError("two\nlines")

    return step


def hidden_momentum():
    velocity = {}

    def merge(model, state, updates):
        change = add_scaled(weighted_mean(updates), -1.0, model)
        last = velocity.get("last", change)
        velocity["last"] = add_scaled(change, 0.5, last)
        return add_scaled(model, 1.0, velocity["last"]), state

    return Aggregate(lambda model: {}, merge, "clients", additive=True)


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize(
    ("make", "violated"),
    [
        (noisy, {"pure: expected step", "vectorizes", "resumes", "lost replies"}),
        (in_place, {"pure: expected step", "vectorizes"}),
        (branching, {"vectorizes"}),
        (by_shape, {"vectorizes"}),
        (counting, {"pure: expected step", "vectorizes"}),  # built anew, it begins anew
        (hidden_momentum, {"pure: expected merge", "resumes"}),
        (failing, {"runs"}),
    ],
)
def test_each_property_that_is_violated_is_a_line(make, violated):
    @engram.method
    class Wrong(engram.LocalMethod):
        name = "wrong"
        eta: float = 0.05

        def rule(self, loss):
            rule = fedavg(loss, eta=self.eta)
            if make is hidden_momentum:
                return rule
            affine = make is by_shape
            return rule._replace(
                step=make(engram.gradient(loss), self.eta), direction=None, affine=affine
            )

        def aggregate(self, shared):
            return hidden_momentum() if make is hidden_momentum else super().aggregate(shared)

    with pytest.raises(AssertionError) as told:
        check_method("wrong")
    lines = str(told.value).splitlines()
    for line in lines:
        assert re.fullmatch(r"[a-z ]+: expected .+; got .+", line), line
    assert len(lines) == len(violated)
    assert all(any(line.startswith(name) for line in lines) for name in violated)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(Refused, match="eta must be"):
        check_method("fedavg", eta=-1.0)
    with pytest.raises(Refused, match="method must be one of"):
        check_method("nothing")


@pytest.mark.parametrize(
    ("name", "own", "words"),
    [
        (None, {}, "name must be small letters, digits and hyphens, got ''"),
        ("My method", {}, "name must be small letters, digits and hyphens, got 'My method'"),
        ("mine", {"seed": (int, 0)}, "a setting of mine must be one with a default, and not the"),
        ("mine", {"eta": (float, ...)}, "a setting of mine must be one with a default, and not"),
    ],
)
def test_a_class_that_is_no_method_is_refused(name, own, words):
    made = create_model("Mine", __base__=engram.LocalMethod, **own)
    if name:
        made.name = name
    with pytest.raises(ValueError, match=re.escape(words)):
        engram.method(made)


@pytest.mark.usefixtures("plug_ins")
def test_a_methods_docstring_says_what_it_means():
    @engram.method
    class Mine(engram.LocalMethod):
        """Steps along signs.

        And more.
        """

        name = "mine"
        eta: float = engram.Field(0.1, gt=0, description="step size")

    assert engram.methods()["mine"] == "Steps along signs"
    with pytest.raises(Refused, match=r"mine.eta must be a finite number, got nan"):
        engram.Experiment(method="mine", eta=float("nan"))
