"""Secure aggregation in one process: the mean of those who stay, and nothing else of anybody."""

from itertools import chain
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import engram
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.guards.changes import vector_of
from engram.guards.secure import stages
from engram.guards.secure.terms import digests
from engram.runs.run import Run
from engram.settings.errors import Refused, RunStopped
from engram.settings.families import METHODS
from engram.simulations.engine import simulate
from engram.wire.messages import Error, Reply
from engram.wire.wire import config_of
from tests.samples import EIGHT, entry, sampled
from tests.support import PROTECTED, small

CLIP = 0.3


def experiment(**special):
    """A run in which some clients are clipped, and some are not, with weights of 1 to 5."""
    given = {"method": "fedavg", "clip": CLIP, "weighting": "rows", "partition": "dirichlet"}
    given |= {"clients_per_round": 20, "num_rounds": 1}
    return small(**given | special)


class Between:
    """Stands between the server and the host, keeps what passes, and has clients drop out.

    Args:
        host: The host.
        gone: By stage, the clients whose answers do not arrive from then on.
    """

    def __init__(self, host, gone=()):
        self.host, self.gone = host, dict(gone)
        self.requests, self.replies = [], []
        self._out = set()

    def describe(self, hosted):
        return self.host.describe(hosted)

    def evaluate(self, requests):
        return self.host.evaluate(requests)

    def exchange(self, requests):
        stage = config_of(requests[0].question.content)["stage"]
        return self._passed(stage, requests, self.host.exchange(requests))

    def train(self, requests):
        return self._passed("train", requests, self.host.train(requests))

    def _passed(self, stage, requests, replies):
        self._out |= {*self.gone.get(stage, ())}
        self.requests += [(stage, request) for request in requests]
        self.replies += [(stage, reply) for reply in replies]
        return [
            Reply(r.question, {}, Error(1, "lost")) if r.hosted[0] in self._out else reply
            for r, reply in zip(requests, replies, strict=True)
        ]


def watched(e, folder):
    """Runs an experiment; returns what stood between server and host."""
    between = []
    simulate(e, folder, through=lambda host: between.append(Between(host)) or between[0])
    return between[0]


def assert_same_models(one, other):
    one, other = (Run.open(folder).load_checkpoint().model for folder in (one, other))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def updates_of(e):
    """Each client's change of the model in round 1, unclipped, with its rows; and the model."""
    plain = e.model_copy(update={"clip": 0.0, "aggregation": "plain"})
    host = host_of(Opening(plain, RamStore()))
    trainer = host.trainer
    common = trainer.method.server.start
    (trained,) = trainer.train(
        common, [range(e.num_clients)], server_round=1, durable=0, combine=None, losses=False
    )
    start = {f"model/{name}": leaf for name, leaf in common["model"].items()}
    moved = [
        {path: trained.slots["model"][path.removeprefix("model/")][i] - leaf
         for path, leaf in start.items()}
        for i in range(e.num_clients)
    ]  # fmt: skip
    return start, moved, trained.examples


def clipped(moved):
    """An update scaled to the norm, by plain torch."""
    length = float(torch.cat([leaf.double().ravel() for leaf in moved.values()]).norm())
    return {path: leaf.double() * min(1.0, CLIP / length) for path, leaf in moved.items()}, length


def test_with_three_of_ten_clients_gone_the_mean_is_that_of_the_others(tmp_path):
    gone = {"keys": [0, 1], "shares": [2, 3], "train": [4, 19]}
    e = experiment(aggregation="secure")
    simulate(e, tmp_path / "run", through=lambda host: Between(host, gone))
    record = Run.open(tmp_path / "run")
    start, moved, rows = updates_of(e)
    stay = [client for client in range(20) if client not in {*chain(*gone.values())}]
    near, lengths = zip(*(clipped(each) for each in moved), strict=True)
    assert min(lengths) < CLIP < max(lengths) or max(lengths) > CLIP
    most = min(max(rows), 5 * sorted(rows)[len(rows) // 2])
    weights = {client: min(rows[client], most) for client in stay}
    model = record.load_checkpoint().model
    for path, leaf in start.items():
        mean = sum(weights[c] * near[c][path] for c in stay) / sum(weights.values())
        np.testing.assert_allclose(model[path], leaf + mean, atol=1e-6)
    (row,) = (row for row in record.rows() if row["round"] == 1)
    assert (row["clients"], row["left-out"]) == (14, 6)
    assert {int(client) for client in row["absent"]} == {0, 1, 2, 3, 4, 19}
    assert "train-loss" not in row


def test_who_is_gone_after_its_update_has_come_is_in_the_mean(tmp_path):
    e = experiment(aggregation="secure")
    gone = {"survivors": [0, 1, 2], "unmask": [5, 6, 7]}
    for name, lost in (("all", {}), ("less", gone)):
        simulate(e, tmp_path / name, through=lambda host, lost=lost: Between(host, lost))
    assert_same_models(tmp_path / "all", tmp_path / "less")


def test_below_the_threshold_the_run_stops_in_one_line(tmp_path):
    e = experiment(aggregation="secure")
    for stage in ("keys", "shares", "train", "survivors", "unmask"):
        gone = {stage: range(7)}
        with entry(stage):
            with pytest.raises(RunStopped) as stopped:
                simulate(e, tmp_path / stage, through=lambda h, gone=gone: Between(h, gone))
            text = str(stopped.value)
            assert "\n" not in text
            assert "of 13 of 20 sites, but secure aggregation needs 14" in text
            assert "the last good checkpoint, of round 0" in text


@pytest.mark.parametrize("method", sampled(PROTECTED, EIGHT))
def test_every_method_whose_merge_sees_a_mean_learns_the_same(tmp_path, method):
    special = {"num_rounds": 2, "clients_per_round": 4, "method": method}
    if METHODS[method].personal == "norm":
        special["norm"] = "batch"
    found = []
    for aggregation in ("plain", "secure"):
        e = experiment(**special, aggregation=aggregation)
        simulate(e, tmp_path / aggregation)
        found.append(Run.open(tmp_path / aggregation).load_checkpoint())
    plain, secure = found
    assert plain.model.keys() == secure.model.keys()
    for path, leaf in plain.model.items():
        np.testing.assert_allclose(secure.model[path], leaf, atol=1e-4)


def test_a_run_that_is_resumed_repeats_its_numbers(tmp_path):
    e = experiment(aggregation="secure", num_rounds=4, clients_per_round=5)
    simulate(e, tmp_path / "whole")
    simulate(e.model_copy(update={"num_rounds": 3}), tmp_path / "parts")
    simulate(e.model_copy(update={"resume": str(tmp_path / "parts")}), tmp_path / "parts")
    assert_same_models(tmp_path / "whole", tmp_path / "parts")


def windows(data, size=16):
    """All runs of so many bytes at steps of four, of which an update has thousands."""
    return {data[i : i + size] for i in range(0, len(data) - size, 4)}


def test_nothing_of_an_update_is_in_what_the_server_receives_writes_or_says(
    tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(stages, "os", SimpleNamespace(urandom=Random(0).randbytes))
    e = experiment(aggregation="secure", hidden="64")
    with caplog.at_level("DEBUG"):
        between = watched(e, tmp_path / "run")
    _, moved, rows = updates_of(e)
    levels = (2**31 - 1) // 20 - 1
    secret = set()
    most = min(max(rows), 5 * sorted(rows)[len(rows) // 2])
    for each, count in zip(moved, rows, strict=True):
        near, _ = clipped(each)
        vector = np.concatenate([near[path].numpy().ravel() for path in sorted(near)])
        words = np.rint(vector / CLIP * min(count, most) / most * levels).astype("<i4")
        for data in (words, vector.astype("<f4"), vector.astype("<f8")):
            secret |= windows(data.tobytes())
    secret -= {window for window in secret if len(set(window)) < 8}  # numbers that are all zero
    assert len(secret) > 10_000
    answers = [reply for _, reply in between.replies]
    assert len(answers) == 100  # five stages of twenty
    arrays = []
    for reply in answers:
        for leaf in reply.content.get("arrays", {}).values():
            arrays.append(leaf.numpy().view(np.uint32))
            assert secret.isdisjoint(windows(leaf.numpy().tobytes()))
        for record in reply.content.values():
            for value in record.values():
                parts = value if isinstance(value, list) else [value]
                for part in (part for part in parts if isinstance(part, bytes)):
                    assert secret.isdisjoint({part[i : i + 16] for i in range(len(part))})
        assert set(reply.content.get("metrics", {})) <= {"num-examples"}
        assert not reply.content.get("clients", {}).get("losses")
    assert len(arrays) == 20
    for masked in arrays:
        low = np.bincount(masked & np.uint32(63), minlength=64)
        high = np.bincount(masked >> np.uint32(26), minlength=64)
        assert chisquare(low).pvalue > 1e-4
        assert chisquare(high).pvalue > 1e-4
    for path in (path for path in (tmp_path / "run").rglob("*") if path.is_file()):
        data = path.read_bytes()
        assert all(secret.isdisjoint(windows(data[shift:])) for shift in range(4)), path
    assert [record for record in caplog.records if "engram" in record.name] == []


def replayed(host, requests, stage, round_number=1, client=0):
    """Sends a stage's message to a client once more; returns the reply's error."""
    for name, request in requests:
        if name == stage and request.hosted[0] == client:
            ask = host.train if stage == "train" else host.exchange
            (reply,) = ask([request])
            return reply.error.reason if reply.error else ""
    raise AssertionError(stage)


def test_a_stage_is_answered_once_and_a_round_that_was_unmasked_never_again(tmp_path):
    between = watched(experiment(aggregation="secure"), tmp_path / "run")
    host, requests = between.host, between.requests
    for stage in ("shares", "train", "survivors", "unmask"):
        assert "is not at this stage of round 1" in replayed(host, requests, stage)
    again = replayed(host, requests, "keys")
    assert "round must be above 1, whose sum client-0 has helped" in again


class Spoiled(Between):
    """Changes the messages of a stage before the host sees them, as a hostile server would."""

    def __init__(self, host, stage, spoil):
        super().__init__(host)
        self.stage, self.spoil = stage, spoil

    def exchange(self, requests):
        if config_of(requests[0].question.content)["stage"] == self.stage:
            for request in requests:
                self.spoil(request.question.content)
        return super().exchange(requests)

    def train(self, requests):
        if self.stage == "train":
            for request in requests:
                self.spoil(request.question.content)
        return super().train(requests)


def spoiled(between, stage, spoil):
    """Returns ``host -> Spoiled``, which is noted in a list."""
    return lambda host: between.append(Spoiled(host, stage, spoil)) or between[0]


def forge(content):
    """Puts other keys in the place of client 3's, without a signature of its own."""
    record = content["secure"]
    at = record["parties"].index(3)
    data = list(record["data"])
    data[at] = bytes(32) + data[at][32:]
    record["data"] = data


def other_terms(content):
    content["config"]["most-examples"] += 1


def heavier(content):
    """A server that names every site's client thrice, so that it counts so often in the sum."""
    config = content["config"]
    config["clients"] = list(config["clients"]) * 3
    config["clients-asked"] = [3] * 20


def of_more_clients(content):
    content["config"]["clients-asked"] = [3] * 20


def both(content):
    """A server that claims client 3 dropped out, whose update has come, to get its key's shares."""
    record = content["secure"]
    record["parties"] = [party for party in record["parties"] if party != 3]


def unsigned(content):
    record = content["secure"]
    record["data"] = [b"" for _ in record["data"]]


def each_model(content):
    content["config"]["combine"] = False


def another_model(content):
    """A model at which a client's own loss hardly moves, say, so that its update is known."""
    arrays = content["arrays"]
    content["arrays"] = {name: 0 * each for name, each in arrays.items()}


def other_units(content):
    config = content["config"]
    config["inputs-mean"], config["inputs-deviation"] = [0.0] * 64, [9.0] * 64


@pytest.mark.parametrize(
    ("stage", "spoil", "told"),
    [
        ("shares", forge, "signature must be by the key that is registered for client-3"),
        ("shares", unsigned, "keys must be more than 64 bytes"),
        ("shares", other_terms, "is not at this stage of round 1"),
        ("keys", heavier, "clients must be named once each"),
        ("train", heavier, "clients must be named once each"),
        ("keys", of_more_clients, "clients-asked of client-0 must be 1, as asked, got 3"),
        ("train", unsigned, "must be sealed by it, for this round"),
        ("train", each_model, "combine must be true where aggregation is secure"),
        ("train", another_model, "settings and model must be those of which all sites of round 1"),
        ("train", other_units, "settings and model must be those of which all sites of round 1"),
        ("unmask", unsigned, "signature must be by the key that is registered for client-"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_a_hostile_server_sends_is_refused_in_one_line(tmp_path, stage, spoil, told):
    through = spoiled([], stage, spoil)
    with pytest.raises(RunStopped, match=told) as stopped:
        simulate(experiment(aggregation="secure"), tmp_path / "run", through=through)
    assert "\n" not in str(stopped.value)


def test_parties_are_bound_to_settings_and_model_and_not_to_their_machines():
    e, arrays = small(), {"model/w": torch.as_tensor(np.ones((2, 3), dtype=np.float32))}

    def digest(experiment=e, arrays=arrays, **config):
        records = {"arrays": arrays, "config": {"clients": [0], **config}}
        return digests(records, experiment)

    whole = digest()
    assert whole == digest(clients=[3]) == digest(small(data_dir="/elsewhere", timeout=5.0))
    flat = {"model/w": torch.as_tensor(np.ones((3, 2), dtype=np.float32))}
    moved = {"model/w": torch.as_tensor(np.full((2, 3), np.nextafter(1, 2, dtype=np.float32)))}
    others = [digest(small(eta=0.0123)), digest(small(seed=9)), digest(arrays=flat)]
    others += [digest(arrays=moved), digest(**{"inputs-mean": [0.0], "inputs-deviation": [2.0]})]
    assert len({whole, *others}) == 6
    assert [other[1] == whole[1] for other in others] == [True, True, False, False, True]
    zeros = ({"w": torch.as_tensor(sign * np.zeros(3, dtype=np.float32))} for sign in (1, -1))
    assert len({digest(arrays=each) for each in zeros}) == 1  # the same numbers, of other bits


def test_parties_are_bound_to_a_number_of_rounds():
    """A site that is told of more rounds than the others may take steps of another size."""
    engram.schedule(lambda server_round: 1 / server_round, "falling")

    def digest(**special):
        arrays = {"model/w": torch.as_tensor(np.ones(2, dtype=np.float32))}
        records = {"arrays": arrays, "config": {}}
        return digests(records, small(**special))

    for schedule in ("cosine", "step", "falling"):
        told = [digest(schedule=schedule, num_rounds=rounds) for rounds in (1, 1000)]
        assert told[0] != told[1], schedule


def test_a_round_that_another_process_of_the_site_has_unmasked_is_not_unmasked_again(tmp_path):
    def told_twice(content):
        training = content["config"]["training"]
        between[0].host._stages.sums._write(3, f"memory/{training}/unmasked", "1")

    between = []
    through = spoiled(between, "unmask", told_twice)
    simulate(experiment(aggregation="secure"), tmp_path / "run", through=through)
    (refused,) = [r.error.reason for s, r in between[0].replies if r.error and s == "unmask"]
    assert refused.startswith("round must be above 1, whose sum client-3 has helped to unmask")


def test_a_survivor_that_is_said_to_be_gone_signs_nothing_and_nobody_tells_both_shares(tmp_path):
    """Client 3, told that it is gone, stays out; the others tell shares of its key alone."""
    between = []
    through = spoiled(between, "survivors", both)
    with pytest.raises(RunStopped, match="shares of the secret of client-3 must give that secret"):
        simulate(experiment(aggregation="secure"), tmp_path / "run", through=through)
    refused = [r.error.reason for s, r in between[0].replies if r.error and s == "survivors"]
    assert len(refused) == 1
    assert "client-3 too" in refused[0]
    told = [r for s, r in between[0].replies if s == "unmask" and not r.error]
    assert all(len(r.content["secure"]["parties"]) == 20 for r in told)


def test_what_needs_more_than_a_sum_is_refused_by_name():
    for settings, told in [
        ({"clients_per_round": 1}, "aggregation = secure needs at least 2 updates a round, got 1"),
        ({"method": "fedfomo"}, "aggregation = secure needs .* that of fedfomo sees every update"),
        ({"secure_threshold": 0.4}, "secure-threshold must be"),
    ]:
        with entry(settings, told), pytest.raises(Refused, match=told):
            experiment(**{"aggregation": "secure"} | settings)


def test_central_noise_comes_in_shares_of_the_sites(tmp_path):
    """The mean is off by noise of deviation z C sqrt(n / t) / n, of n asked and t needed."""
    z, given = 2.0, {"hidden": "64", "weighting": "clients"}
    private = given | {"privacy": "central", "noise_multiplier": z}
    records = []
    for name, special in {"exact": given, "noisy": private, "again": private}.items():
        simulate(experiment(aggregation="secure", **special), tmp_path / name)
        records.append(Run.open(tmp_path / name))
    exact, noisy, again = (vector_of(record.load_checkpoint().model) for record in records)
    assert torch.equal(noisy, again)
    assert float((noisy - exact).std()) == pytest.approx(z * CLIP * (20 / 14) ** 0.5 / 20, rel=0.05)
    # One round of rho = 1 / (2 z^2), by Bun and Steinke's conversion.
    rho = 1 / (2 * z**2)
    epsilon = rho + 2 * np.sqrt(rho * np.log(1e5))
    assert records[1].results["epsilon"] == pytest.approx(epsilon, rel=1e-9)
    aimed = experiment(aggregation="secure", **given, privacy="central", epsilon=epsilon)
    results = simulate(aimed, tmp_path / "aimed")  # the least such noise, to four digits
    assert z * (1 - 1e-9) <= results["noise-multiplier"] <= 1.0015 * z
    assert results["epsilon"] <= epsilon


def test_statistics_that_no_clip_bounds_are_refused(tmp_path):
    e = experiment(aggregation="secure", model="resnet", hidden="4,6")
    with pytest.raises(Refused, match="statistics must be local or fixed"):
        simulate(e, tmp_path / "run")
