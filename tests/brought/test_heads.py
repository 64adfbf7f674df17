"""A method of a user's own, of FedPAC's kind, on everything that runs, scores and exports methods.

The server makes a head for each client, by statistics that clients send; a round has two phases.
This file is also the plug-in that makes it known to other processes.
"""

import inspect
from typing import Annotated

import pytest
import torch
from annotated_types import Ge, Gt, Lt

import engram
from engram.core import (
    Client,
    Eta,
    FromEach,
    Method,
    Phase,
    Served,
    Server,
    Tally,
    kinds_of,
    mean_of,
    or_common,
    pick,
    scatter,
)
from engram.core.slots import flat, over_slots
from engram.guards.changes import changes

# --- The method ----------------------------------------------------------------------------------


def register():
    """Makes the method known."""

    @engram.method("heads", source="this file", tasks=("classification",))
    class Heads:
        """A common body near common class centers, under heads that are mixed by likeness."""

        eta: Eta = 0.1
        pull: Annotated[float, Ge(0), "weight of the distance to the centers"] = 0.5
        head_share: Annotated[float, Gt(0), Lt(1), "share of a round's steps for the head"] = 0.5
        reach: Annotated[float, Gt(0), "distance of sums at which a head counts 1/e"] = 0.5

        def build(self, context):
            """Trains the head, then the body; s_i are a client's sums of representations by class.

            head_i <- sum_j a_ij head_j,  a_ij in proportion to exp(-|s_i - s_j| / reach)
            """
            network, objective = context.network, context.objective
            network.require_representation()
            head = network.head
            body = frozenset(network.initial) - head
            nothing = {
                "sums": torch.zeros(context.outputs, network.width),
                "rows": torch.zeros(context.outputs),
            }
            tally = Tally(nothing)

            def loss(w, centers, batch):
                outputs, z = network.represent(w, batch)
                member = (batch[1][:, None] == torch.arange(context.outputs)).to(z)
                means = centers["sums"] / centers["rows"].clamp(min=1e-6)[:, None]
                known = member @ (centers["rows"] > 0).to(z)
                far = ((z - member @ means).square().mean(1) * known).mean()
                seen = {"sums": member.T @ z / len(z), "rows": member.mean(0)}
                return objective.criterion(outputs, batch) + self.pull * far, seen

            def phase(names, slot, fraction=1.0):
                gradient = objective.differentiate(loss, names)

                def direction(work, batches):
                    g, seen = gradient(work["model"], work["centers"], batches[0])
                    return {"model": g}, work | {slot: tally.add(work[slot], seen)}

                return Phase(direction, self.eta, fraction=fraction, one_gradient_per_batch=True)

            def begin(received, kept, batch):
                model = received["body"] | received["head"]
                return received | {"model": model, "before": tally.start, "after": tally.start}

            def end(received, work):
                sent = {"body": pick(work["model"], body), "head": pick(work["model"], head)}
                return sent | {slot: tally.mean(work[slot]) for slot in ("before", "after")}, {}

            def send(server, clients):
                own = or_common(server["heads"], server["head"], server["known"], clients)
                return {slot: server[slot] for slot in ("body", "centers")}, {"head": own}

            def merge(server, updates):
                mean, cohort = mean_of(updates, "rows").slots, [u.client for u in updates]
                sums = torch.stack([u.slots["before"]["sums"].flatten() for u in updates])
                weights = torch.softmax(-torch.cdist(sums, sums) / self.reach, 1)
                heads = {n: torch.stack([u.slots["head"][n] for u in updates]) for n in head}
                mixed = {n: torch.tensordot(weights, leaf, dims=1) for n, leaf in heads.items()}
                return {
                    "body": mean["body"],
                    "head": mean["head"],
                    "heads": scatter(server["heads"], cohort, mixed),
                    "known": server["known"].index_fill(0, torch.tensor(cohort), 1.0),
                    "centers": mean["after"],
                }

            first = pick(network.initial, head)
            start = {
                "body": pick(network.initial, body),
                "head": first,
                "heads": {n: x.repeat(context.clients, *[1] * x.ndim) for n, x in first.items()},
                "known": torch.zeros(context.clients),
                "centers": nothing,
            }
            sends = {"body", "head", "before", "after"}
            phases = (
                phase(head - network.running, "before", self.head_share),
                phase(body - network.running, "after"),
            )
            return Method(
                Server(start, send, FromEach(merge)),
                Client(begin, phases, end, sends),
                serve=lambda received, kept, trained: Served(
                    (received["body"] | received["head"],)
                ),
                kinds=kinds_of(
                    models="model body head", statistics="heads known centers before after"
                ),
            )


if __name__ == "test_heads":  # as a plug-in
    register()

# --- What is shown of it -------------------------------------------------------------------------

SLOTS = {"body", "head", "before", "after"}
QUICK = {"num_clients": 4, "clients_per_round": 3, "num_rounds": 4, "local_steps": 4}
QUICK |= {"batch_size": 8, "hidden": "8", "eval_every": 2, "checkpoint_every": 2}


@pytest.fixture(autouse=True)
def _known(plug_ins):
    register()


def experiment(**settings):
    from engram.settings.experiment import Experiment

    return Experiment(method="heads", **QUICK | settings)


def arrays(folder):
    """All of the server's slots in a run's last checkpoint."""
    from engram.runs.run import Run

    checkpoint = Run.open(folder).load_checkpoint()
    found = {**checkpoint.model, **checkpoint.state}
    assert {name.partition("/")[0] for name in found} >= {
        "body",
        "head",
        "heads",
        "known",
        "centers",
    }
    return found


def assert_as_here(there, folder):
    """Checks a run elsewhere by one of the same settings in this process."""
    from engram.simulations.engine import simulate

    simulate(experiment(), folder)
    found, expected = arrays(there), arrays(folder)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_method_is_short():
    assert len(inspect.getsource(register).splitlines()) <= 130


def test_it_keeps_the_contract():
    from engram.testing import check_method

    check_method("heads")  # pure, at once as in turn, resumed as at a stretch, lost replies


def test_clients_are_scored_by_what_serves_them_and_export_it(tmp_path):
    run = engram.simulate(method="heads", out=tmp_path / "run", progress=False, **QUICK)
    slots = arrays(tmp_path / "run")
    test = run.learned.data.test
    for client in range(4):
        w = run.personal_model(client)
        known = slots["known"][client] > 0
        head = "heads" if known else "head"
        for n in ("dense1.weight", "dense1.bias"):
            wanted = slots[f"{head}/{n}"]
            torch.testing.assert_close(w[n], wanted[client] if known else wanted)
        torch.testing.assert_close(w["dense0.weight"], slots["body/dense0.weight"])
        x, y = test.take(torch.as_tensor(test.rows[client]))
        run.export(client, out=tmp_path / f"model-{client}")
        outputs = engram.load_model(tmp_path / f"model-{client}")(x)
        right = float((outputs.argmax(-1) == y).float().mean())
        assert run.clients["accuracy"][client] == pytest.approx(right, abs=1e-6)


def test_every_slot_that_leaves_is_clipped_and_noised():
    from tests.support import initial_model, own_of, trainer

    def ones(size, stream, *keys):
        return torch.ones(size)

    def left(noise=ones, **settings):
        t = trainer(experiment(**settings), noise=noise)
        (done,) = t.train(
            initial_model(t), [[1, 2]], server_round=1, durable=0, own=own_of(t, [1, 2])
        )
        return t, done.slots

    t, plain = left()
    _, clipped = left(clip=0.01)
    _, noisy = left(clip=0.01, privacy="local", noise_multiplier=3.0)
    assert plain.keys() == clipped.keys() == noisy.keys() == SLOTS
    received = initial_model(t) | {
        s: {n: x[0] for n, x in slot.items()} for s, slot in own_of(t, [1]).items()
    }
    for i in range(2):
        update = over_slots(lambda leaf, i=i: leaf[i], clipped)
        moved = flat(changes(t.method, received, update))
        length = sum(float(leaf.square().sum()) for leaf in moved.values()) ** 0.5
        assert length == pytest.approx(0.01, rel=1e-4)
        assert {name.partition("/")[0] for name, leaf in moved.items() if leaf.any()} == SLOTS
    for name, leaf in flat(noisy).items():
        torch.testing.assert_close(leaf - flat(clipped)[name], torch.full_like(leaf, 0.03))


def test_what_needs_a_mean_is_refused_by_name():
    from engram.settings.errors import Refused

    for settings in ({"merge": "median"}, {"privacy": "central", "clip": 1.0}):
        with pytest.raises(Refused, match="that of heads sees every update"):
            experiment(**settings)
