"""Settings: one place for defaults, one line for everything that is wrong."""

import inspect
import json
import pydoc
import re
import tomllib
from pathlib import Path

import pytest

import engram
from engram.guards.merge import Merge
from engram.methods.pfedme import PFedMe as PFedMeItself
from engram.scoring.metrics import METRICS
from engram.settings import experiment
from engram.settings.base import SharedSettings
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment, Impossible, default_config
from engram.settings.families import METHODS
from engram.settings.settings_files import RUN_KEYS, read_settings
from tests.methods import problem
from tests.samples import entry
from tests.support import small

FedAvg, PFedMe = METHODS["fedavg"], METHODS["pfedme"]


def refusal(**settings):
    config = {key.replace("_", "-"): value for key, value in settings.items()}
    with pytest.raises(Refused) as caught:
        Experiment.from_config(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_there_are_the_settings_that_were_asked_for():
    asked_for = """method dataset data-dir partition num-clients clients-per-round num-rounds
    local-steps batch-size model hidden seed adapt-shots adapt-steps adapt-lr eval-every device
    rows-per-class test-rows-per-class dirichlet-alpha classes-per-client
    local-moml.initial-batch-size local-moml.alpha local-moml.beta local-moml.eta
    local-moml.hessian local-moml.memory pfedme.lambda pfedme.inner-steps pfedme.server-mix"""
    assert set(asked_for.split()) <= default_config().keys()


def test_projects_have_the_keys_that_run_config_takes():
    for folder in (".", "simulations/project"):
        path = Path(__file__).parents[2].joinpath(folder, "pyproject.toml")
        table = tomllib.loads(path.read_text())["tool"]["flwr"]["app"]["config"]
        assert [*table] == ["engram", *RUN_KEYS], folder
        assert folder != "." or {*table.values()} == {""}
    assert set(RUN_KEYS) <= default_config().keys()


def test_notebooks_and_help_know_the_arguments_and_settings_of_functions():
    names = {name for group in METHODS.values() for name in group.model_fields}
    names |= SharedSettings.model_fields.keys() - {"resume"}
    for function in (Experiment, engram.simulate, engram.compare, engram.tune):
        with entry(function):
            found = inspect.signature(function).parameters
            assert names <= found.keys()
            assert (found["num_rounds"].default, found["nu"].default) == (100, 5.0)
            assert not {"own", "settings"} & found.keys()
            needed = {"methods": "ditto"} if function is engram.tune else {}
            inspect.signature(function).bind(eta=0.3, **needed)
            if function is Experiment:
                continue
            title, _, call, says, *_ = pydoc.plain(pydoc.render_doc(function)).splitlines()
            assert function.__name__ in title
            assert call.startswith(f"{function.__name__}(data=None, *, ")
            assert call.endswith(", **settings)")
            assert len(call) < 250
            assert says.strip() == function.__doc__.splitlines()[0]


def test_every_method_and_setting_says_what_it_is_and_no_key_means_two_things():
    shared = SharedSettings.model_fields.keys()
    for group in [SharedSettings, *METHODS.values()]:
        with entry(group):
            assert all(field.description for field in group.model_fields.values())
            assert not any(field.is_required() for field in group.model_fields.values())
    for name, method in METHODS.items():
        with entry(name):
            assert method.name == name
            assert method.meaning
            assert method.source
            assert method.unread <= shared
            assert method.decisive <= shared - method.unread
            assert not {*method.all_keys()} & {*SharedSettings.all_keys(), "method"}


def test_what_an_experiment_is_can_be_written_and_read():
    for method in METHODS:
        with entry(method):
            e = small(method=method, **({"num_rounds": 3} if method == "molar-bandit" else {}))
            assert Experiment.from_config(e.to_config()) == e
            assert Experiment.from_run_config({"engram": json.dumps(e.to_config())}) == e
            foreign = {name for key in e.identity() if "." in key for name in [key.split(".")[0]]}
            assert foreign <= {method}


def test_settings_are_given_by_name():
    e = Experiment(method="pfedme", eta=0.2, lambda_=3, num_rounds=7)
    assert (e.of(PFedMe).eta, e.of(PFedMe).lambda_, e.num_rounds) == (0.2, 3.0, 7)
    assert Experiment(**{"method": "pfedme", "pfedme.eta": 0.2, "lambda": 3, "num-rounds": 7}) == e
    assert Experiment(method="pfedme", pfedme={"eta": 0.2, "lambda_": 3}, num_rounds=7) == e
    with pytest.raises(TypeError, match="pfedme is no fedavg"):
        e.of(FedAvg)


ELSEWHERE = [
    ({"method": "fedavg", "nu": 2.0}, "nu is a setting of meta-ban, and the method is fedavg"),
    ({"method": "fedavg", "pfedme.eta": 1.0}, "pfedme.eta is a setting of pfedme, and the"),
    ({"nu": 2.0}, r"nu is a setting of meta-ban, .* method is local-moml \(the default\)"),
    (
        {"pfedme": 3},
        r"^pfedme must be a table of its settings \(\[pfedme\] in a file, "
        r'pfedme={"KEY": VALUE} in Python\) or pfedme\.KEY = VALUE, got 3$',
    ),
    ({"method": "meta-ban", "eta": 1.0}, "eta is a setting of local-moml, per-fedavg, apfl"),
    ({"method": "meta-ban", "partition": "iid"}, "partition is not a setting of meta-ban"),
    ({"method": "molar", "hidden": "4"}, "hidden is not a setting of molar"),
    ({"pfedmee.eta": 1.0}, r"pfedmee.eta is not a setting \(did you mean pfedme.eta\?\)"),
    *(
        ({"method": "fedavg", word: 1}, rf"^{word} is not a setting \(did you mean {meant}\?\)$")
        for word, meant in {
            **dict.fromkeys(("lr", "learning-rate", "LR", "step-size"), "eta"),
            **dict.fromkeys(("epochs", "num-epochs"), "local-epochs"),
            **dict.fromkeys(("batchsize", "bs"), "batch-size"),
            **dict.fromkeys(("rounds", "num-server-rounds"), "num-rounds"),
            **dict.fromkeys(("clients", "n-clients"), "num-clients"),
            "fraction-fit": "clients-per-round",
            "fedavg.lr": r"fedavg\.eta",
        }.items()
    ),
    # It has no step size of this name.
    ({"method": "molar", "lr": 1}, "^lr is not a setting$"),
    ({"algorithm": "pfedme"}, "algorithm is no setting any more: write method"),
    (
        {"method": "meta-ban", "tell-turns": 3},
        "tell-turns is no setting any more: write report-every",
    ),
    (
        {"method": "pfedmy"},
        r"method must be one of .*\(did you mean pfedme or .*\?\), got 'pfedmy'",
    ),
]


def test_a_setting_of_another_method_is_refused_by_its_name():
    for settings, message in ELSEWHERE:
        with entry(settings, message):
            assert re.search(message, refusal(**settings))


def test_no_machine_opens_a_file_that_a_run_names(tmp_path):
    (path := tmp_path / "t.toml").write_text('columns.age = {kind = "number"}\n')
    there = Experiment.from_config({"schema": str(path)})
    assert Experiment.from_run_config({"schema": there.schema}) == there
    with pytest.raises(Refused, match=r"schema must be lines of a schema, not a file"):
        Experiment.from_run_config({"engram": json.dumps({"schema": str(path)})})


RUN_CONFIGS = [
    ('{"fedavg": {"eta": 0.3}, "hidden": ""}', {"method": "fedavg", "num-rounds": 5}, ""),
    ('{"pfedme.eta": 0.3}', {"method": "fedavg"}, r"pfedme\.eta is a setting of pfedme"),
    ('{"hidden": "7"}', {"method": "molar"}, "hidden is not a setting of molar"),
    ('{"num-rounds": 5}', {"num-rounds": 5}, "num-rounds must be given in engram or beside it"),
    ("settings.toml", {}, "engram in a run config is not JSON"),
    ("[1]", {}, r"engram in a run config must be settings as JSON, .* got '\[1\]'"),
    ("[" * 9999, {}, "engram in a run config is not JSON: it nests too deeply"),
    ('{"engram": "{}"}', {}, "engram in a run config must be settings without engram among them"),
    ('{"a": {"b": {"c": 1}}}', {}, "a.b in engram of a run config must be a number, text or"),
]


def test_flowers_run_config_has_settings_as_json_and_some_beside_them():
    untouched = dict.fromkeys(("engram", *RUN_KEYS), "")
    assert Experiment.from_run_config(untouched) == Experiment()
    for text, beside, words in RUN_CONFIGS:
        with entry(text, beside):
            config = untouched | {"engram": text} | beside
            if words:
                with pytest.raises(Refused, match=words):
                    Experiment.from_run_config(config)
            else:
                e = Experiment.from_run_config(config)
                assert (e.of(FedAvg).eta, e.hidden, e.num_rounds) == (0.3, "", 5)


def test_by_default_a_round_asks_no_more_clients_than_there_are():
    for settings, asked in [
        ({"num-clients": 1}, 1),
        ({"num-clients": 4, "unseen-clients": 1}, 3),
        ({"num-clients": 4, "unseen": "0,1"}, 2),
        ({"num-clients": 40}, 10),
    ]:
        with entry(settings, asked):
            e = Experiment.from_config({"method": "fedavg", **settings})
            assert e.clients_per_round == asked
            assert Experiment.from_config(e.to_config()) == e


def test_a_group_of_its_own_settings_is_what_a_method_is_run_by():
    one, other = small(method="fedavg", eta=0.1), small(method="fedavg", eta=0.2)
    assert one.identity() != other.identity()
    assert one.identity().keys() == other.identity().keys()


def test_all_that_is_wrong_is_named_at_once():
    message = refusal(**{"num-round": 3, "etta": 1.0, "beta": 2.0, "clients-per-round": "many"})
    assert "num-round is not a setting (did you mean num-rounds?)" in message
    assert "etta is not a setting (did you mean eta?)" in message
    assert "beta must be less than or equal to 1, got 2.0" in message
    assert "clients-per-round must be a valid integer" in message
    message = refusal(**{"method": "pfedme", "lambda": [1, 2], "etta": 1.0})
    assert "etta is not a setting (did you mean eta?)" in message
    assert "pfedme.lambda must be a valid number, got [1, 2]" in message


TOLD = [
    (
        {"method": "pfedme", "eta": -1.0, "clients-per-round": 30},
        "pfedme.eta must be greater than 0, got -1.0; "
        "clients-per-round must be at most num-clients = 20, got 30",
    ),
    (
        {"num-clients": 0, "clients-per-round": 30, "privacy": "local"},
        "num-clients must be greater than or equal to 1, got 0; "
        "privacy = local needs that what a client adds has a largest norm: set clip",
    ),
    (
        {"method": "fedrep", "local-epochs": -1, "local-steps": 1},
        "local-epochs must be greater than or equal to 0, got -1",
    ),
    (
        {"method": "molar-bandit", "first-batch": 0, "num-rounds": 40},
        "molar-bandit.first-batch must be greater than or equal to 1, got 0",
    ),
    (
        {"method": "pfedme", "lambda": -1.0, "alpha": 0.5},
        "pfedme.lambda must be greater than 0, got -1.0",
    ),
    (
        {"num-client": 30, "clients-per-round": 25},
        "num-client is not a setting (did you mean num-clients?)",
    ),
]


def test_what_depends_on_an_impossible_setting_is_not_told():
    for settings, message in TOLD:
        with entry(settings, message):
            assert refusal(**settings) == message


DEPENDING = [
    ({"clients-per-round": 21}, "clients-per-round num-clients"),
    ({"unseen-clients": 20}, "unseen-clients num-clients"),
    ({"unseen-clients": 3, "unseen": "4,17"}, "unseen-clients unseen"),
    ({"min-clients": 11}, "min-clients clients-per-round"),
    ({"shards": 3}, "shards clients-per-round"),
    ({"patience": 1, "protocol": "few-shot"}, "patience protocol validation-fraction"),
    ({"local-epochs": 1, "order": "stream"}, "local-epochs order"),
    ({"optimizer-state": "kept"}, "optimizer-state optimizer"),
    ({"standardize": "federation", "privacy": "local", "clip": 1.0}, "standardize privacy"),
    ({"metrics": "accuracy", "task": "regression"}, "metrics task"),
    ({"merge": "krum", "num-malicious": 4}, "merge clients-per-round bucket-size num-malicious"),
    ({"privacy": "central"}, "privacy clip"),
    ({"privacy": "central", "clip": 1.0, "merge": "median"}, "privacy merge"),
    ({"method": "fedrep", "local-steps": 1}, "local-steps local-epochs"),
    ({"method": "pfedme", "alpha": 1.0}, "alpha lambda"),
    ({"method": "molar-bandit", "num-rounds": 40}, "num-rounds first-batch"),
    ({"method": "molar", "sharing": "adaptive", "threshold-scale": 0}, "threshold-scale sharing"),
]


def test_a_fault_has_the_settings_that_it_depends_on():
    for settings, keys in DEPENDING:
        with entry(settings, keys):
            with pytest.raises(Refused) as caught:
                Experiment.from_config(settings)
            (fault,) = caught.value.faults
            assert (fault.keys, fault.text) == (tuple(keys.split()), str(caught.value))
            for key in fault.keys:  # none of which may be a list
                with pytest.raises(Refused) as caught:
                    Experiment.from_config(settings | {key: []})
                assert [told.keys for told in caught.value.faults] == [(key,)]


def test_a_word_of_a_fault_that_is_a_key_too_is_no_dependence(monkeypatch):
    monkeypatch.setitem(METRICS, "loss", METRICS["rmse"])
    told = refusal(task="regression", metrics="accuracy", loss="none")
    assert re.search("loss must be .*; metrics must be some of .*loss.* for task regression", told)


OUT_OF_RANGE = [
    ({"clients_per_round": 21}, "clients-per-round must be at most num-clients = 20, got 21"),
    ({"method": "sgd"}, "method must be one of those that `engram methods` lists, or a"),
    ({"method": "pfedme", "alpha": 1.0}, r"alpha \* lambda must be below 2, got 15.0"),
    ({"num_rounds": True}, "num-rounds must be a number, got True"),
    ({"num_rounds": 2.5}, "num-rounds must be a valid integer.*got 2.5"),
    ({"num_rounds": "9" * 5000}, "num-rounds must be a valid integer, got '999"),
    ({"eta": 1e31}, r"eta must be less than or equal to 1e\+30, got 1e\+31"),
    ({"alpha": float("inf")}, "alpha must be a finite number, got inf"),
    ({"num_classes": 1}, "num-classes must be 0, or at least 2, got 1"),
    ({"momentum": 1.0}, "momentum must be less than 1, got 1.0"),
    ({"local_epochs": 2, "order": "stream"}, "local-epochs must be 0 where order is stream, got 2"),
    ({"optimizer_state": "kept"}, "fresh where optimizer is sgd, which has none, got 'kept'"),
    ({"hidden": "40,x"}, "hidden must be whole numbers with commas, such as 40,40, got '40,x'"),
    ({"device": "tpu"}, "device must be cpu, cuda or cuda:N, got 'tpu'"),
    ({"memory": "keep"}, "memory must be 'reset' or 'carry', got 'keep'"),
    ({"hessian": "none"}, "hessian must be 'exact', 'first-order' or 'finite-difference'"),
    ({"shards": 3}, "shards must be a divisor of clients-per-round = 10, got 3"),
    ({"bucket_size": 2}, "bucket-size = 2 needs .* robust center of updates: merge is mean"),
    (
        {"merge": "multi-krum", "num_malicious": 1, "bucket_size": 3},
        "merge = multi-krum needs at least 5 updates a round, got 4: see clients-per-round",
    ),
    (
        {"merge": "trimmed-mean", "num_malicious": 5},
        "merge = trimmed-mean needs at least 11 updates a round, got 10: see clients-per-round",
    ),
    ({"privacy": "both"}, "privacy must be 'none', 'local', 'central' or 'example', got 'both'"),
    (
        {"privacy": "central", "clip": 1.0, "merge": "median"},
        "privacy = central needs .* not depend on the other clients: merge = median ends that",
    ),
    ({"server_step": "adam"}, "server-step must be one of replace, universal, got 'adam'"),
    ({"server_step": "universal:0"}, "server-step must be universal:NUMBER, above 0 and at most"),
    (
        {"method": "molar", "server_step": "universal"},
        "server-step is not a setting of molar, which does not read it",
    ),
    *(
        (
            {"method": name, "num_clients": 20, "clients_per_round": 20} | settings,
            f"{told} needs .* mean of updates alone: that of {name} sees every update",
        )
        for name in ("fedpac", "ifca")
        for settings, told in [
            ({"merge": "median"}, "merge = median"),
            ({"merge": "multi-krum", "bucket_size": 2}, "bucket-size = 2"),
            ({"privacy": "central", "clip": 1.0}, "privacy = central"),
        ]
    ),
]


def test_refuses_values_out_of_range():
    for settings, message in OUT_OF_RANGE:
        with entry(settings, message):
            assert re.search(message, refusal(**settings))


def test_huge_numbers_are_refused_in_short():
    for key in ("num-clients", "hidden", "timeout"):  # a count, widths, and seconds
        for huge in (10**12, 10**18, 10**30, "9" * 5000, 16**9000):
            with entry(key, hex(huge) if isinstance(huge, int) else huge):  # no digits too many
                message = refusal(**{key: huge})
                assert message.startswith(f"{key} must be ")
                assert len(message) < 300


LONG = [
    {"dataset": 7, "method": "x" * 10**5},
    {"x" * 10**5: 1},
    {"hidden": "9" * 10**5},
    {"model": ["x" * 10**5] * 9},
    {f"key{i}": i for i in range(10**4)},
]


def test_refusals_repeat_little_of_what_is_long():
    for settings in LONG:
        with entry(settings):
            assert len(refusal(**settings)) <= 2000


def test_layers_have_a_largest_width_and_number():
    for most, more in [("1048576", "1048577"), (",".join("9" * 64), ",".join("9" * 65))]:
        assert small(hidden=most).hidden == most
        assert "hidden must be at most 64 widths of at most 1048576" in refusal(hidden=more)


def test_text_from_a_command_line_is_read_as_what_it_should_be():
    e = small(num_rounds="7", alpha="1e-3", hidden=64)
    assert (e.num_rounds, e.own.alpha, e.hidden_widths) == (7, 1e-3, (64,))
    assert small(hidden="").hidden_widths == ()


def test_reads_settings_from_toml(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("num-rounds = 7\n[pfedme]\nlambda = 3.5\n")
    assert read_settings(path) == {"num-rounds": 7, "pfedme.lambda": 3.5}
    path.write_text("[a.b]\nc = 1")
    told = r"a.b in .*mine.toml must be a number, text or boolean, got {'c': 1}"
    with pytest.raises(Refused, match=told):
        read_settings(path)


def test_as_many_may_lie_as_a_round_can_stand():
    assert small(merge="trimmed-mean", num_malicious=4, clients_per_round=9).num_malicious == 4
    assert small(merge="krum", num_malicious=3, clients_per_round=9).num_malicious == 3
    assert small(merge="median", num_malicious=9).merge == "median"  # which does not look at it


def test_protection_the_servers_step_and_the_order_are_part_of_what_a_run_is():
    settings = {"merge", "num-malicious", "clip", "privacy", "noise-multiplier", "delta"}
    assert settings | {"server-step", "order"} <= small().identity().keys()


def test_a_step_that_a_setting_makes_the_server_s_own_has_no_other():
    settings = {"server_mix": 0.5, "server_step": "universal"}
    method = problem.built(PFedMeItself(server_mix=0.5))
    with pytest.raises(Refused, match="server-step must be replace for pfedme, whose server has"):
        Merge(small(method="pfedme", **settings), method, frozenset())
    assert Merge(small(method="pfedme"), method, frozenset()).combines


STEP_SIZES = [
    'eta = {"0.*" = 0.03, "*.bias" = 0.1}\n',
    '[fedavg]\neta = {"0.*" = 0.03, "*.bias" = 0.1}\n',
    '[eta]\n"0.*" = 0.03\n"*.bias" = 0.1\n',
    'eta-by = "0.*=0.03,*.bias=0.1"\n',
]


def test_a_table_of_step_sizes_is_the_same_in_files_and_in_python(tmp_path):
    for text in STEP_SIZES:
        with entry(text):
            path = tmp_path / "some.toml"
            path.write_text(text)
            read = Experiment.from_config({"method": "fedavg"} | read_settings(path))
            given = Experiment(method="fedavg", eta={"0.*": 0.03, "*.bias": 0.1})
            assert read == given
            assert given.eta_by == "0.*=0.03,*.bias=0.1"
            assert given == Experiment.from_config(given.to_config())


def test_a_table_of_anything_else_is_refused():
    told = r"^eta-by must be a table of patterns with numbers"
    for eta in [{"0.*": -1.0}, {"0.*": "fast"}, {"": 0.1}, {"a,b": 0.1}]:
        with entry(eta), pytest.raises(Impossible, match=told):
            Experiment(method="fedavg", eta=eta)


def test_former_settings_say_what_to_write_unless_a_run_has_recorded_their_defaults():
    recorded = ((key, value) for key, (value, _) in experiment.FORMER.items())
    defaults = {key: value for key, value in recorded if value is not None}
    assert Experiment.from_config(defaults | {"buffer-size": 5}) == Experiment()
    assert Experiment.from_config({"buffer-size": 5}).buffer_size == 5
    for key, (value, instead) in experiment.FORMER.items():
        with entry(key):
            other = value + 1 if isinstance(value, int | float) else f"{value}x"
            with pytest.raises(Refused, match=f"^{key} is no setting any more: write ") as caught:
                Experiment.from_config({key: other})
            assert instead in str(caught.value)
