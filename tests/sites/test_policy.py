"""A site's policy: what its file may say, and what a server that asks for more is told."""

import re
from datetime import UTC, datetime, timedelta

import pytest
import torch

from engram.client import app as module
from engram.data.schema.columns import Kind
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.fingerprint import source_root
from engram.sites.audit import Audit
from engram.sites.policy import Policy, is_open, policy_file, read_policy
from engram.sites.policy_checks import of_bytes, of_models, of_now, of_rows, of_settings
from engram.wire.messages import TRAIN
from engram.wire.roster import read_entry
from engram.wire.wire import CONFIG, ROSTER_QUERY
from tests.samples import entry
from tests.sites.budgets import answer_of, refusal
from tests.sites.sites import ask, train
from tests.support import small

pytestmark = pytest.mark.usefixtures("afresh")

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


# --- The file ----------------------------------------------------------------------------------


def test_a_policy_is_read_from_its_file_or_from_a_clients_folder(tmp_path):
    assert policy_file(tmp_path) is None
    assert read_policy(tmp_path) == read_policy(None) == Policy()
    file = tmp_path / "policy.toml"
    file.write_text('methods = ["fed*"]\nsteps = 500\nleast-rows = 20\nhours = "20:00-06:00"\n')
    expected = Policy(methods=("fed*",), steps=500, least_rows=20, hours="20:00-06:00")
    assert read_policy(file) == read_policy(tmp_path) == expected
    assert policy_file(tmp_path) == file


def test_a_wrong_policy_is_refused_in_one_line(tmp_path):
    secret = "privacy must be 'none', 'local', 'central' or 'example', got 'secret'"
    for text, says in [
        ("stepz = 3", r"stepz is no rule \(did you mean steps\?\); rules are methods, plugins, .*"),
        ("steps = true", "steps must be a number, got True"),
        ("steps = 0\nmib = -1", "steps must be .* or equal to 1, got 0; mib must be .* got -1"),
        ('methods = "fedavg"', "methods must be a list, got 'fedavg'"),
        ('privacy = ["secret"]', secret),
        ('hours = "8-9"', "hours must be HH:MM-HH:MM in UTC, such as 20:00-06:00, got '8-9'"),
        ("steps = ", ".* is not TOML: .*"),
    ]:
        with entry(text, says):
            file = tmp_path / "policy.toml"
            file.write_text(text)
            with pytest.raises(Refused) as caught:
                read_policy(tmp_path)
            assert re.fullmatch(rf"{file}:? ?{says}", str(caught.value)), caught.value


def test_hours_may_pass_midnight():
    for hours, time, expected in [
        *(("", "03:00", True), ("09:00-09:00", "08:59", True)),
        *(("08:00-17:30", time, time != "17:30") for time in ("08:00", "17:29", "17:30")),
        *(("20:00-06:00", time, True) for time in ("23:59", "05:59")),
        *(("20:00-06:00", time, False) for time in ("06:00", "12:00")),
    ]:
        with entry(hours, time):
            assert is_open(hours, datetime.fromisoformat(f"2026-03-01T{time}:00+00:00")) is expected


# --- What it is against ------------------------------------------------------------------------


def against(policy, own=False, plugins=(), **settings):
    e = Experiment.from_config({key.replace("_", "-"): v for key, v in settings.items()})
    return list(of_settings(Policy(**policy), e, own=own, plugins=plugins))


def test_settings_beyond_a_policy_are_named_with_what_it_allows():
    central, noise = {"privacy": "central", "clip": 1}, "noise-multiplier must be at least"
    twice = "at most 9, got 10 (local-steps 5 times pfedme.inner-steps 2)"
    quantile = "clip-quantile must be 0, since only the server clips then, got 0.5"
    for policy, settings, says in [
        ({"methods": ("molar", "fed*")}, {"method": "ditto"}, "method must be molar, fed* or x"),
        ({"methods": ()}, {}, "method must be none at all, got"),
        ({"datasets": ("npz:/srv/*",)}, {"dataset": "digits"}, "dataset must be npz:/srv/*, got"),
        ({"steps": 9}, {"local_steps": 10}, "at most 9, got 10 (local-steps 10)"),
        ({"steps": 9}, {"method": "pfedme", "pfedme.inner-steps": 2}, twice),
        ({"steps": 9}, {"adapt_steps": 11}, "at most 9, got 11 (adapt-steps 11)"),
        ({"privacy": ("local",)}, {}, "privacy must be local, got none"),
        ({"privacy": ("local", "central")}, {"method": "molar"}, "local or central, got none"),
        ({"noise_multiplier": 1.0}, central | {"noise_multiplier": 0.05}, f"{noise} 1, got 0.05"),
        ({"clip": 2.0}, {}, "clip must be above 0 and at most 2, got 0"),
        ({"clip": 2.0}, {"clip": 2.5}, "clip must be above 0 and at most 2, got 2.5"),
        ({"clip": 2.0}, central | {"clip_quantile": 0.5}, quantile),
        # Solved for three rounds: far below.
        ({"noise_multiplier": 9.0}, central | {"epsilon": 9, "num_rounds": 3}, f"{noise} 9, got "),
    ]:
        with entry(policy, settings, says):
            own = {} if settings.get("method") == "molar" else {"adapt_steps": 1}
            (found,) = against(policy, **own | settings)
            assert says.replace("molar, fed* or x", "molar or fed*") in found


def test_settings_within_a_policy_are_let_in():
    for policy, settings in [
        ({"methods": ("fed*",)}, {"method": "fedavg"}),
        ({"datasets": ("digits",)}, {"dataset": "digits"}),
        ({"steps": 10}, {"local_steps": 10}),
        ({"noise_multiplier": 1.0}, {}),  # there is no privacy, and the policy allows that
        ({"noise_multiplier": 1.0}, {"privacy": "local", "clip": 1}),
        ({"clip": 2.0}, {"clip": 2.0}),
    ]:
        with entry(policy, settings):
            assert against(policy, **settings) == []


def test_a_nodes_own_data_are_none_that_a_run_names():
    assert against({"datasets": ()}, own=True) == []


def test_files_are_compared_by_their_real_place(tmp_path):
    policy = {"datasets": (f"npz:{tmp_path}/open/*",)}
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link.npz").symlink_to(tmp_path / "secret.npz")
    assert against(policy, dataset=f"npz:{tmp_path}/open/rows.npz") == []
    for name in ("open/link.npz", "open/../secret.npz"):
        (found,) = against(policy, dataset=f"npz:{tmp_path}/{name}")
        assert found.endswith(f"got npz:{tmp_path.resolve()}/secret.npz")


def test_plug_ins_are_called_by_their_names():
    found = against({"plugins": ("ours",)}, plugins=("/srv/ours", "theirs"))
    assert found == ["plug-ins must be ours, got theirs"]


def test_epochs_take_as_many_steps_as_rows_have_batches():
    """10 rows in batches of 4 are 3 batches, and 2 epochs of them are 6 steps."""
    e = Experiment(local_epochs=2, batch_size=4)
    assert list(of_rows(Policy(steps=6), e, {0: 10, 1: 3})) == []
    (found,) = of_rows(Policy(steps=5), e, {0: 10, 1: 3})
    assert found.endswith("at most 5, got 6 (local-epochs 2 times batches 3)")


def test_clients_with_few_rows_are_named():
    (found,) = of_rows(Policy(least_rows=20), Experiment(), {0: 19, 1: 20, 2: 3})
    assert found == "training rows must be at least 20, got 3 of client [0, 2]"


def test_updates_of_one_row_are_refused_unless_noise_hides_it():
    one = {"batch_size": 1, "local_steps": 1}
    assert list(of_rows(Policy(), Experiment(**one), {0: 50})) == [
        "an update must be made of at least 2 rows, got 1 of batch-size 1 times local-steps 1"
    ]
    assert list(of_rows(Policy(), Experiment(), {0: 50, 1: 1})) == [
        "an update must be made of at least 2 rows, got 1 of the client that has fewest"
    ]
    noisy = {"privacy": "local", "noise_multiplier": 1.0, "clip": 1.0}
    for settings in ({"batch_size": 2, "local_steps": 1}, {"local_epochs": 1}, one | noisy):
        assert list(of_rows(Policy(), Experiment(**settings), {0: 50})) == []
    assert list(of_rows(Policy(least_drawn=1), Experiment(**one), {0: 50})) == []
    for privacy in ("local", "example"):  # a run may ask for as little noise as it likes
        faint = one | {"method": "fedavg", "privacy": privacy, "noise_multiplier": 0.9, "clip": 1.0}
        assert len(list(of_rows(Policy(), Experiment(**faint), {0: 50}))) == 1
    assert list(of_rows(Policy(), Experiment(method="molar"), {0: 1})) == []


def test_the_time_and_the_rounds_of_a_day_count():
    for policy, kind, rounds, says in [
        ({"hours": "20:00-06:00"}, "train", 0, ["hours are 20:00-06:00 UTC, and it is 12:00"]),
        ({"rounds_a_day": 3}, "train", 2, []),
        ({"rounds_a_day": 3}, "train", 3, ["rounds a day must be at most 3, and 3 were today"]),
        ({"rounds_a_day": 3}, ROSTER_QUERY, 3, ["rounds a day must be at most 3"]),
        ({"rounds_a_day": 3}, "evaluate", 3, []),
        ({"evaluate": False}, "evaluate", 0, []),
    ]:
        with entry(policy, kind, rounds, says):
            found = list(of_now(Policy(**policy), kind, rounds, NOON))
            assert len(found) == len(says)
            assert all(text in line for text, line in zip(says, found, strict=True))


def test_bytes_of_a_round_are_bounded():
    assert list(of_bytes(Policy(mib=2), 2**21)) == []
    assert list(of_bytes(Policy(mib=2), 2**21 + 2**19)) == [
        "a round must be of at most 2 MiB, got 2.5"
    ]


def test_the_size_of_models_is_known_before_they_are_made():
    """A layer of 2^20 by 2^20 numbers takes 4 TiB, which no machine here has."""
    kind, policy = Kind("float32[1,8,8]", 10), Policy(model_mib=0.01)
    assert list(of_models(policy, Experiment(hidden="8"), kind)) == []
    (found,) = of_models(policy, Experiment(hidden="1048576,1048576"), kind)
    assert re.fullmatch(r"models must have at most 0.01 MiB, got 4\.19\de\+06", found)


def test_a_method_with_several_models_sends_them_all():
    """64 x 40 + 40 x 10 weights and 50 biases of float32 are 12,040 bytes; 3 of them, 36,120."""
    kind, e = Kind("float32[1,8,8]", 10), Experiment(method="fedem", hidden="40")
    assert list(of_models(Policy(model_mib=36_200 / 2**20), e, kind)) == []
    (found,) = of_models(Policy(model_mib=36_000 / 2**20), e, kind)
    assert found.endswith("MiB, got 0.03445")


# --- What a node answers -----------------------------------------------------------------------


def test_all_that_a_policy_is_against_is_told_at_once_before_data_are_read(tmp_path, monkeypatch):
    rules = 'methods = ["molar"]\nsteps = 1\ndatasets = []\nprivacy = ["local"]\nclip = 1\n'
    (tmp_path / "policy.toml").write_text(rules)
    monkeypatch.setattr(module, "_node", lambda *args: pytest.fail("data were read"))
    told = refusal(ask(tmp_path))
    assert told.startswith("this site's policy is against it: method must be molar, got local-moml")
    for part in ("dataset must be none at all", "steps of a round", "privacy must be", "clip must"):
        assert part in told
    assert told.endswith("(whoever starts the run can change that, or the site its policy)")


def test_a_change_of_the_policy_holds_from_the_next_message_on(tmp_path):
    assert read_entry(ask(tmp_path).content).clients
    (tmp_path / "policy.toml").write_text("least-rows = 100000")
    assert "training rows must be at least 100000" in refusal(ask(tmp_path))
    (tmp_path / "policy.toml").write_text("model-mib = 0.001\nleast-rows = 100000")
    assert "models must have at most 0.001 MiB" in refusal(ask(tmp_path))
    (tmp_path / "policy.toml").write_text("steps = ")
    assert "is not TOML" in refusal(ask(tmp_path))


def test_a_message_that_is_larger_than_a_round_is_not_trained_on(tmp_path, monkeypatch):
    (tmp_path / "policy.toml").write_text("mib = 0.01")
    monkeypatch.setattr(module, "_node", lambda *args: pytest.fail("data were read"))
    arrays = {"w": torch.zeros(4000)}
    content = {"arrays": arrays, CONFIG: {"training": "0" * 16}}
    told = refusal(ask(tmp_path, TRAIN, content))
    assert "a round must be of at most 0.01 MiB, got 0.01" in told


def test_rounds_of_a_day_are_counted_and_noted(tmp_path, monkeypatch, warnings_of_engram):
    at = [NOON]
    for where in ("engram.sites.audit.now", "engram.client.app.now"):
        monkeypatch.setattr(where, lambda: at[0])
    (tmp_path / "policy.toml").write_text("rounds-a-day = 2")
    assert train(tmp_path, 1).error is None
    module._node.cache_clear()  # as after a restart
    assert train(tmp_path, 2).error is None
    for _ in range(2):
        told = refusal(train(tmp_path, 3))
        assert "rounds a day must be at most 2, and 2 were today (UTC)" in told
    at[0] += timedelta(hours=12)
    assert train(tmp_path, 3).error is None
    lines = Audit(tmp_path / "log").read().lines
    assert [line.get("round") for line in lines] == [1, 2, None, 3]  # one refusal of two
    assert lines[2]["why"] == told
    assert [line["today"] for line in lines] == [1, 2, 2, 1]
    assert lines[0].keys() >= {"run", "training", "rows", "metrics", "received", "sent", "seconds"}
    assert sum("refused: this site's policy" in line for line in warnings_of_engram.messages) == 1


def test_nothing_leaves_that_the_audit_cannot_have(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Audit, "append", full)
    told = refusal(train(tmp_path))
    assert told.startswith("this site's log cannot be written (No space left on device), so that")


def test_a_simulations_nodes_have_no_policy():
    e = small(**{"adapt-steps": 100_000, "num-clients": 20})
    assert answer_of(e, ROSTER_QUERY, {}).error is None


def test_the_documented_policy_is_one(tmp_path):
    text = (source_root() / "docs" / "sites.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "policy.toml").write_text(block)
    policy = read_policy(tmp_path)
    assert (policy.steps, policy.least_count, policy.privacy) == (500, 5, ("local",))
    section = text.partition("## Policies")[2].partition("\n## ")[0]
    for key in Policy.all_keys():
        assert re.search(rf"(?:^|`){key}(?: =|`)", section, flags=re.MULTILINE), key
