"""Every number of every method has a range, and memory is known before it is taken."""

from math import inf, isfinite, nan

import pytest
import torch

from engram.core import machine
from engram.core.method import FromMean
from engram.core.rounds import received_by
from engram.core.slots import flat
from engram.data.federated import model_for
from engram.settings.base import SharedSettings, family
from engram.settings.errors import Refused, RunStopped
from engram.settings.experiment import Experiment
from engram.settings.families import METHODS
from engram.settings.fields import key_of
from engram.settings.method_for_data import check_kept, check_server, server_side, shapes_on
from engram.simulations.engine import simulate
from tests.samples import EIGHT, entry
from tests.support import own_of, size_of, small_of_any, trainer

HUGE = (2**31, 2**63, 2**64 - 1, 1e308, -1, 0, nan, inf)
LARGER = {"seed": 2**32}  # than a million: the root of random streams, and no count
STEPS = {"local_steps", "local_epochs", "adapt_steps", "inner_steps"}  # which take as much time
NEEDED = {  # settings without which a setting is not looked at
    "adapt_shots": {"protocol": "few-shot"},
    "classes_per_client": {"partition": "iid"},
    "momentum": {"optimizer": "adam"},
    "noise_multiplier": {"privacy": "central", "clip": 1.0},
    "num_malicious": {"merge": "trimmed-mean"},
}
FOR_BATCH_NORM = {"model": "resnet", "hidden": "4"}


def numbers():
    """Each setting that is a number: its method, its field's name, and its least and largest."""
    for name, group in {"": SharedSettings, **METHODS}.items():
        for field, info in group.model_fields.items():
            if info.annotation in (int, float):
                low, high = (
                    [getattr(m, end) for m in info.metadata for end in ends if hasattr(m, end)]
                    for ends in (("ge", "gt"), ("le", "lt"))
                )
                yield name, field, info, max(low, default=-inf), min(high, default=inf)


NUMBERS = list(numbers())


def test_every_number_has_a_range_that_a_node_can_bear():
    for name, field, info, low, high in NUMBERS:
        with entry(name, field):
            assert isfinite(low)
            assert low >= 0
            assert high <= LARGER.get(field, 10**6 if info.annotation is int else 1e30)


def settings(name, field, value):
    method = name or "fedavg"
    more = FOR_BATCH_NORM if method == "fedbn" else {}
    return {"method": method, "num_rounds": 1, **more, **NEEDED.get(field, {}), field: value}


def test_a_number_out_of_its_range_is_refused_in_one_line_that_names_it():
    for name, field, info, low, high in NUMBERS:
        key = f"{name}.{key_of(field)}" if name else key_of(field)
        strict = {bound for m in info.metadata for bound in ("gt", "lt") if hasattr(m, bound)}
        for value in HUGE:
            above = low < value if "gt" in strict else low <= value
            below = value < high if "lt" in strict else value <= high
            if above and below:
                continue
            with entry(key, value):
                with pytest.raises(Refused) as caught:
                    Experiment.from_config({"method": name or "fedavg", key: value})
                assert "\n" not in str(caught.value)
                assert key_of(field) in str(caught.value)


def extremes():
    """The largest value of each number of methods of networks, but for numbers of steps."""
    for k, (name, field, info, _, high) in enumerate(NUMBERS):
        unread = {"num_clients", "num_rounds", "cpu_threads"}  # which the test sets, or cost time
        if (name or "fedavg") in family("local") and field not in STEPS | unread:
            top = high if high > 1 else 0.999
            marks = pytest.mark.full if k % 28 else ()
            value = info.annotation(top)
            yield pytest.param(name, field, value, id=f"{name}.{field}", marks=marks)


@pytest.mark.parametrize(("name", "field", "value"), extremes())
def test_the_largest_value_runs_or_is_refused_and_leaves_nothing(tmp_path, name, field, value):
    folder, told, left = tmp_path / "run", "", False
    try:
        simulate(small_of_any(**settings(name, field, value)), folder)
    except RunStopped as stopped:  # it diverged
        told = str(stopped)
    except Refused as refused:
        told = str(refused)
        left = folder.exists()
    assert not left
    assert "\n" not in told


def test_the_least_noise_and_delta_have_an_epsilon(tmp_path):
    given = {"method": "fedavg", "num_rounds": 1, "privacy": "central", "clip": 1.0}
    for least in [{"noise_multiplier": 1e-6}, {"delta": 1e-100}]:
        e = small_of_any(**given, **least)
        assert isfinite(simulate(e, tmp_path / next(iter(least)))["epsilon"])


# --- Memory -----------------------------------------------------------------------------------


def begun(method, **more):
    """An experiment, its trainer, and what client 0 receives and works on."""
    e = small_of_any(method=method, **(FOR_BATCH_NORM if method == "fedbn" else {}) | more)
    t = trainer(e)
    received = received_by(t.method, t.method.server.start, 0)
    batch = t.data.train.take(torch.from_numpy(t.data.train.rows[0][:2]))
    return e, t, received, t.method.client.begin(received, t.method.client.start, batch)


def shapes(e, t):
    return server_side(e, t.data.kind)[1]


@pytest.fixture
def free(monkeypatch):
    """Sets the bytes that are free, of which every one counts."""
    monkeypatch.setattr(machine, "_SMALL", 0)

    def of(count):
        monkeypatch.setattr(machine, "available", lambda device: count)

    return of


@pytest.mark.parametrize("method", EIGHT)
def test_slots_are_known_before_they_are_made(method, free):
    e, t, received, work = begun(method)
    check_the_servers_are_known_to_the_byte(e, t, received, work, free)
    held = max(size_of(flat(received)), size_of(flat(t.method.server.start)))
    needed = held + 2 * size_of(flat(work))  # a gradient, and the next
    needed = max(needed, 3 * size_of(t.learner.network.initial))
    free(needed)
    shapes_on(e, model_for(e, t.data.kind), t.data.outputs)
    free(needed - 1)
    with pytest.raises(Refused, match=r"(a client of|a model of) .* needs"):
        shapes_on(e, model_for(e, t.data.kind), t.data.outputs)


def check_the_servers_are_known_to_the_byte(e, t, received, work, free):
    """Its own, the updates of a round, and what it makes for each client."""
    free(2**40)
    known, server = shapes(e, t), t.method.server
    sent, _ = t.method.client.end(received, work)
    held = 1 if isinstance(server.merge, FromMean) else e.clients_per_round
    needed = size_of(flat(server.start)) + held * size_of(flat(sent))
    needed += size_of(flat(own_of(t, range(e.num_clients))))
    free(needed)
    check_server(e, known)
    free(needed - 1)
    with pytest.raises(Refused, match=f"the server of {e.method} needs"):
        check_server(e, known)


@pytest.mark.parametrize(
    ("method", "given", "advice"),
    [
        ("ifca", {"clusters": 100, "hidden": "16"}, "lower ifca.clusters"),
        ("fedem", {"components": 100}, "lower fedem.components"),
        ("pfedhn", {"embedding": 50, "layer_width": 200}, "pfedhn.embedding or pfedhn.layer-width"),
        ("meta-ban", {"dataset": "linear-groups", "hidden": "4000,4000"}, "lower hidden"),
    ],
)
def test_too_much_is_refused_where_a_run_is_started_and_leaves_nothing(
    tmp_path, free, method, given, advice
):
    folder = tmp_path / "run"
    free(400_000)  # rows and a network of 610 parameters fit, and not so many of them
    with pytest.raises(Refused, match=f"{method} needs .* 0.000373 GiB are free: .*{advice}"):
        simulate(small_of_any(method=method, **given), folder)
    assert not folder.exists()


def test_what_clients_keep_in_this_process_is_known(free):
    e, t, *_ = begun("ditto", num_rounds=100)
    known, size = shapes(e, t), size_of(flat(t.method.client.start))
    free(e.num_clients * size)
    check_kept(e, known)
    free(e.num_clients * size - 1)
    with pytest.raises(Refused, match=f"what {e.num_clients} clients of ditto keep"):
        check_kept(e, known)
    check_kept(small_of_any(method="ditto", num_rounds=1), known)  # 4 clients train


def test_a_name_that_something_must_have_is_not_empty():
    for key in ("schedule", "optimizer"):
        with pytest.raises(Refused, match=f"{key} must be one of"):
            Experiment.from_config({key: ""})
    assert Experiment.from_config({"augment": "", "loss": "", "metrics": ""}).augment == ""
