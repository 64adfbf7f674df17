"""Settings: one place for defaults, one line for everything that is wrong."""

import re

import pytest

from engram.aggregates import mean
from federation.algorithms import ALGORITHMS
from federation.errors import Refused
from federation.experiment import Experiment, read_defaults
from federation.settings import read_settings
from tests.support import small


def refusal(**settings):
    config = read_defaults() | {key.replace("_", "-"): value for key, value in settings.items()}
    with pytest.raises(Refused) as caught:
        Experiment.from_config(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_are_those_of_the_paper_sections_names():
    asked_for = """algorithm dataset data-dir partition num-clients clients-per-round num-rounds
    local-steps batch-size initial-batch-size alpha beta eta hessian memory lambda inner-steps
    server-mix model hidden seed adapt-shots adapt-steps adapt-lr eval-every device rows-per-class
    test-rows-per-class dirichlet-alpha classes-per-client"""
    assert set(asked_for.split()) <= read_defaults().keys()
    assert Experiment.from_config(read_defaults()).to_config() == read_defaults()


def test_every_setting_has_a_meaning_and_only_pyproject_has_defaults():
    for field in Experiment.model_fields.values():
        assert field.description
        assert field.is_required()


def test_all_that_is_wrong_is_named_at_once():
    message = refusal(**{"num-round": 3, "lamda": 1.0, "beta": 2.0, "clients-per-round": "many"})
    assert "num-round is not a setting (did you mean num-rounds?)" in message
    assert "lamda is not a setting (did you mean lambda?)" in message
    assert "beta must be less than or equal to 1, got 2.0" in message
    assert "clients-per-round must be a valid integer" in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients_per_round": 21}, "clients-per-round must be at most num-clients = 20, got 21"),
        ({"algorithm": "sgd"}, "algorithm must be one of local-moml, per-fedavg, pfedme, fedavg"),
        ({"algorithm": "pfedme", "alpha": 1.0}, r"alpha \* lambda must be below 2, got 15.0"),
        ({"num_rounds": True}, "num-rounds must be a number, got True"),
        ({"num_rounds": 2.5}, "num-rounds must be a valid integer.*got 2.5"),
        ({"num_rounds": 0}, "num-rounds must be greater than or equal to 1, got 0"),
        ({"eta": float("nan")}, "eta must be .*, got nan"),
        ({"alpha": float("inf")}, "alpha must be a finite number, got inf"),
        ({"hidden": "40,x"}, "hidden must be whole numbers with commas, such as 40,40, got '40,x'"),
        ({"device": "tpu"}, "device must be cpu, cuda or cuda:N, got 'tpu'"),
        ({"memory": "keep"}, "memory must be 'reset' or 'carry', got 'keep'"),
        ({"hessian": "none"}, "hessian must be 'exact', 'first-order' or 'finite-difference'"),
        ({"shards": 3}, "shards must be a divisor of clients-per-round = 10, got 3"),
        ({"memory_budget": -1.0}, "memory-budget must be greater than or equal to 0, got -1.0"),
        ({"merge": "mode"}, "merge must be 'mean', 'median', 'trimmed-mean' or 'krum', got 'mode'"),
        (
            {"merge": "trimmed-mean", "num_malicious": 5},
            "clients-per-round must be at least 11 for trimmed-mean with num-malicious = 5, got 10",
        ),
        (
            {"merge": "krum", "num_malicious": 4},
            "clients-per-round must be at least 11 for krum with num-malicious = 4, got 10",
        ),
        ({"num_malicious": -1}, "num-malicious must be greater than or equal to 0, got -1"),
        ({"clip": -0.5}, "clip must be greater than or equal to 0, got -0.5"),
        ({"privacy": "both"}, "privacy must be 'none', 'local' or 'central', got 'both'"),
        ({"privacy": "local"}, "clip must be positive where privacy is local, got 0.0"),
        ({"privacy": "central"}, "clip must be positive where privacy is central, got 0.0"),
        (
            {"privacy": "central", "clip": 1.0, "merge": "median"},
            "merge must be mean where privacy is central, got 'median'",
        ),
        ({"noise_multiplier": 0.0}, "noise-multiplier must be greater than 0, got 0.0"),
        ({"delta": 1.0}, "delta must be less than 1, got 1.0"),
        ({"server_step": "adam"}, "server-step must be 'replace' or 'universal', got 'adam'"),
        ({"server_radius": 0.0}, "server-radius must be greater than 0, got 0.0"),
        (
            {"algorithm": "pfedme", "server_step": "universal", "server_mix": 0.5},
            "server-mix must be 1 where server-step is universal.*, got 0.5",
        ),
        (
            {"algorithm": "molar", "server_step": "universal"},
            "server-step must be replace for molar, got 'universal'",
        ),
        (
            {"algorithm": "molar-bandit", "server_step": "universal"},
            "server-step must be replace for molar-bandit, got 'universal'",
        ),
        ({"order": "time"}, "order must be 'shuffled' or 'stream', got 'time'"),
        ({"seed": -1}, "seed must be greater than or equal to 0, got -1"),
    ],
)
def test_refuses_values_out_of_range(settings, message):
    assert re.search(message, refusal(**settings))


@pytest.mark.parametrize(
    "key",
    ["num-clients", "rows-per-class", "test-rows-per-class", "hidden", "num-classes", "timeout"],
)
@pytest.mark.parametrize("huge", [10**12, 10**18, 10**30, "9" * 5000, "hex"])
def test_huge_numbers_are_refused_in_short(key, huge):
    huge = 16**9000 if huge == "hex" else huge  # of which pytest could make no name
    message = refusal(**{key: huge})
    assert message.startswith(f"{key} must be ")
    assert len(message) < 300


@pytest.mark.parametrize(
    "settings",
    [
        {"dataset": 7, "algorithm": "x" * 10**5},
        {"x" * 10**5: 1},
        {"hidden": "9" * 10**5},
        {"model": ["x" * 10**5] * 9},
        {f"key{i}": i for i in range(10**4)},
    ],
)
def test_refusals_repeat_little_of_what_is_long(settings):
    assert len(refusal(**settings)) <= 2000


@pytest.mark.parametrize(
    ("hidden", "ok"),
    [
        ("1048576", True),
        ("1048577", False),
        (",".join("9" * 64), True),
        (",".join("9" * 65), False),
    ],
)
def test_layers_have_a_largest_width_and_number(hidden, ok):
    if ok:
        assert small(hidden=hidden).hidden == hidden
    else:
        assert "hidden must be at most 64 widths of at most 1048576" in refusal(hidden=hidden)


def test_one_class_is_none():
    assert "num-classes must be 0, or at least 2, got 1" in refusal(num_classes=1)


def test_a_missing_setting_is_named():
    config = read_defaults()
    del config["eta"]
    with pytest.raises(Refused, match="eta is missing"):
        Experiment.from_config(config)


def test_text_from_a_command_line_is_read_as_what_it_should_be():
    e = small(num_rounds="7", alpha="1e-3", hidden=64)
    assert (e.num_rounds, e.alpha, e.hidden_widths) == (7, 1e-3, (64,))
    assert small(hidden="").hidden_widths == ()


def test_reads_settings_from_toml(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("num-rounds = 7\nlambda = 3.5\n")
    assert read_settings(path) == {"num-rounds": 7, "lambda": 3.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [("num-rounds = ", "is not TOML"), ("[a]\nb = 1", "must be flat, .*; a is not")],
)
def test_refuses_other_files(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(Refused, match=message):
        read_settings(path)
    with pytest.raises(Refused, match="cannot be read: No such file"):
        read_settings(tmp_path / "none.toml")


def test_as_many_may_lie_as_a_round_can_stand():
    assert small(merge="trimmed-mean", num_malicious=4, clients_per_round=9).num_malicious == 4
    assert small(merge="krum", num_malicious=3, clients_per_round=9).num_malicious == 3
    assert small(merge="median", num_malicious=9).merge == "median"  # which does not look at it


def test_protection_is_part_of_what_a_run_is():
    settings = {"merge", "num-malicious", "clip", "privacy", "noise-multiplier", "delta"}
    assert settings <= small().identity().keys()


def test_a_mix_that_is_not_looked_at_may_be_anything():
    assert small(algorithm="fedavg", server_step="universal", server_mix=0.5).server_mix == 0.5


def test_the_servers_step_and_the_order_are_part_of_what_a_run_is():
    assert {"server-step", "server-radius", "order"} <= small().identity().keys()


def test_an_algorithm_without_a_mean_has_no_other_merge(monkeypatch):
    every = ALGORITHMS["fedavg"]._replace(aggregate=lambda e: mean()._replace(additive=False))
    monkeypatch.setitem(ALGORITHMS, "fedavg", every)
    assert not small(algorithm="fedavg", clip=1.0).aggregate().additive
    assert "merge must be mean where" in refusal(algorithm="fedavg", merge="median")
    assert "privacy must be none or local where" in refusal(
        algorithm="fedavg", privacy="central", clip=1.0
    )
