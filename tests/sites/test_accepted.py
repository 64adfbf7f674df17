"""A policy in force: what becomes of it when its file is gone, cut off, loosened or tightened."""

import hashlib
import json
import os
from contextlib import suppress
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from itertools import product

import numpy as np
import pytest

from engram.client import app as module
from engram.link.node import node
from engram.settings.errors import Refused
from engram.settings.fields import key_of
from engram.sites.audit import Audit
from engram.sites.policy import (
    USUAL,
    Policy,
    in_force,
    is_looser,
    is_open,
    keep_policy,
    read_policy,
)
from engram.sites.policy_checks import of_now
from engram.wire.checksums import summed
from engram.wire.messages import TRAIN
from tests.samples import entry
from tests.sites.budgets import refusal
from tests.sites.sites import ask

STRICT = 'methods = ["fedavg"]\nsteps = 500\nhours = "20:00-06:00"\n'
pytestmark = pytest.mark.usefixtures("afresh")

RULES = {  # of each rule, values from the loosest to the strictest
    "methods": [("*",), ("fed*", "molar*"), ("fed*",), ("feda*", "fedprox"), ("fedavg",), ()],
    "plugins": [("*",), ("ours",), ()],
    "datasets": [("*",), ("npz:/srv/*",), ("npz:/srv/data/*",), ("npz:/srv/data/a.npz",), ()],
    "model_mib": [1024, 10, 0.5],
    "steps": [100_000, 500, 1],
    "seconds": [86400, 60],
    "mib": [4096, 1],
    "rounds_a_day": [100_000, 1, 0],
    "hours": ["", "18:00-08:00", "20:00-06:00", "23:00-01:00", "23:30-00:30"],
    "least_rows": [1, 50],
    "least_drawn": [1, 2, 20],
    "least_count": [1, 5],
    "evaluate": [True, False],
    "downloads": [True, False],
    "privacy": [("none", "local", "central", "example"), ("none", "local"), ("local",)],
    "noise_multiplier": [0, 0.5, 4],
    "clip": [0, 5, 1],
    "epsilon": [0, 8, 0.5],
    "delta": [1e-3, 1e-5],
    "secure": [0, 2, 5],
    "approval": [False, True],
    "release": [False, True],
}


# --- Which of two values is looser -------------------------------------------------------------


def test_each_rule_is_tightened_without_a_word_and_loosened_with_one():
    assert RULES.keys() == Policy.model_fields.keys()
    for rule, values in RULES.items():
        for i, j in product(range(len(values)), repeat=2):
            assert is_looser(rule, values[i], values[j]) is (i < j), (rule, values[i], values[j])


def test_neither_value_includes_the_other():
    for rule, new, old in [
        ("hours", "06:00-20:00", "20:00-06:00"),
        ("hours", "21:00-06:01", "20:00-06:00"),
        ("methods", ("*",), ("?",)),  # of which every name that new means is one letter
        ("methods", ("*a",), ("[*]a",)),
        ("methods", ("[*]a",), ("*]b", "x")),
        ("methods", ("fedavg", "molar"), ("fedavg",)),
        ("methods", ("[dpx]*",), ("*dp*",)),
        ("privacy", ("example",), ("local", "example")),  # epsilon is of rows then
        ("privacy", ("local",), ("example",)),
        ("unheard_of", 3, 2),  # a rule of which nothing is known here
        ("unheard_of", 2, 3),
    ]:
        with entry(rule, new, old):
            assert is_looser(rule, new, old)


def test_patterns_and_hours_that_pass_as_tighter_let_nothing_in():
    """By brute force: all patterns of three letters over a, * and ?, on all words up to four."""
    words = ["".join(w) for n in range(5) for w in product("ab", repeat=n)]
    patterns = ["".join(w) for n in range(4) for w in product("a*?", repeat=n)]
    meant = {p: {w for w in words if fnmatchcase(w, p)} for p in patterns}
    for new, old in product(patterns, repeat=2):
        assert is_looser("methods", (new,), (old,)) or meant[new] <= meant[old], (new, old)
    day = [datetime(2026, 3, 1) + timedelta(minutes=m) for m in range(1440)]
    rng = np.random.default_rng(0)
    times = [f"{h:02}:{m:02}" for h, m in rng.integers((24, 60), size=(40, 2))]
    pairs = [f"{one}-{other}" for one, other in zip(times[::2], times[1::2], strict=True)]
    for new, old in product(["", *pairs], repeat=2):
        within = {at for at in day if is_open(new, at)} <= {at for at in day if is_open(old, at)}
        assert is_looser("hours", new, old) is not within


# --- A node ------------------------------------------------------------------------------------


def answers(folder):
    """Whether a node answers a method that its strict policy forbids, and what it says if not."""
    reply = ask(folder, method="fedprox", local_steps=501)
    return "" if not reply.error else refusal(reply)


def spoiled(how, file):
    if how == "renamed":
        file.rename(file.with_name("policy.bak"))
    elif how == "a dangling link":
        file.rename(file.with_name("policy.bak"))
        file.symlink_to(file.with_name("gone.toml"))
    elif how == "a folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_text({"emptied": "", "commented out": "# steps = 500\n", "torn": "steps ="}[how])


def test_a_policy_that_is_gone_opens_nothing_also_after_a_restart(tmp_path):
    for how in ["renamed", "a dangling link", "a folder", "emptied", "commented out", "torn"]:
        with entry(how):
            (folder := tmp_path / how).mkdir()
            file = folder / "policy.toml"
            file.write_text(STRICT)
            first = answers(folder)
            assert "method must be fedavg, got fedprox" in first
            spoiled(how, file)
            for _ in range(2):
                assert "policy" in answers(folder)
                content = {"a": {}}
                assert ask(folder, TRAIN, content).error
                module._node.cache_clear()  # as after a restart
            if how != "renamed":  # a new node takes no default for it
                words = r"policy\.toml (cannot be read|has no rule|is not TOML)"
                with pytest.raises(Refused, match=words):
                    keep_policy(folder, folder / "new")
            if file.is_dir():
                file.rmdir()
            else:
                file.unlink(missing_ok=True)
            file.write_text(STRICT)
            assert answers(folder) == first


def test_a_policy_that_is_cut_off_anywhere_lets_in_no_more(tmp_path):
    """Whatever its first bytes are: an error, nothing, or some of its rules, tighter or looser."""
    noon = datetime(2026, 3, 1, 12)
    for length in range(len(STRICT)):
        folder = tmp_path / str(length)
        folder.mkdir()
        file = folder / "policy.toml"
        file.write_text(STRICT)
        whole = keep_policy(folder, folder)
        file.write_text(STRICT[:length])
        with entry(length), suppress(Refused):
            found = keep_policy(folder, folder)
            assert not any(is_looser(n, getattr(found, n), getattr(whole, n)) for n in RULES)
            assert (found.methods, found.hours) == (whole.methods, whole.hours)
            assert list(of_now(found, TRAIN, 0, noon))


def test_a_change_that_loosens_waits_and_one_that_tightens_holds(tmp_path, warnings_of_engram):
    file = tmp_path / "policy.toml"
    file.write_text("steps = 500\nleast-rows = 20\n")
    keep_policy(tmp_path, tmp_path)
    file.write_text("steps = 600\nleast-rows = 30\n")
    for _ in range(2):
        found = keep_policy(tmp_path, tmp_path)
        assert (found.steps, found.least_rows) == (500, 30)
    (told,) = warnings_of_engram.messages
    assert "steps stays 500, and 600 waits" in told
    file.write_text("steps = 500\n")  # a rule is gone
    assert in_force(tmp_path, tmp_path)[0].least_rows == 30
    assert keep_policy(tmp_path, tmp_path, accept=True) == Policy(steps=500)
    assert in_force(tmp_path, tmp_path) == (Policy(steps=500), [])


def test_looking_at_a_policy_keeps_nothing(tmp_path):
    (tmp_path / "policy.toml").write_text("steps = 500\n")
    assert in_force(tmp_path, tmp_path)[0].steps == 500
    assert os.listdir(tmp_path) == ["policy.toml"]


def test_a_file_that_vanishes_while_it_is_read_forgets_nothing(tmp_path, monkeypatch):
    file = tmp_path / "policy.toml"
    file.write_text(STRICT)
    whole = keep_policy(tmp_path, tmp_path)

    def vanishing(path):
        file.rename(tmp_path / "moved")
        try:
            return read_policy(path)
        finally:
            (tmp_path / "moved").rename(file)

    monkeypatch.setattr("engram.sites.policy.read_policy", vanishing)
    with pytest.raises(Refused, match="cannot be read: No such file"):
        keep_policy(tmp_path, tmp_path)
    monkeypatch.undo()
    assert in_force(tmp_path, tmp_path) == (whole, [])


def test_a_site_without_a_policy_has_the_defaults_and_may_write_one(tmp_path):
    assert keep_policy(tmp_path, tmp_path) == keep_policy(None, tmp_path) == USUAL
    (tmp_path / "policy.toml").write_text("steps = 1000000\n")
    assert keep_policy(tmp_path, tmp_path).steps == 1_000_000


def test_what_the_state_keeps_is_checked(tmp_path):
    (tmp_path / "policy.toml").write_text(STRICT)
    keep_policy(tmp_path, tmp_path)
    kept = tmp_path / "policy.json"
    kept.write_text(kept.read_text().replace("500", "900"))
    with pytest.raises(Refused, match=r"policy\.json is damaged: its operator accepts the policy"):
        keep_policy(tmp_path, tmp_path)
    assert keep_policy(tmp_path, tmp_path, accept=True).steps == 500


def test_a_rule_of_another_version_is_left_out(tmp_path):
    """A newer rule has its default here, and one that is no more is not looked at."""
    kept = summed({"rules": {"steps": 500, "ancient": 3}})
    (tmp_path / "policy.json").write_text(json.dumps(kept))
    (tmp_path / "policy.toml").write_text("steps = 600\nhours = '20:00-06:00'\n")
    found, waits = in_force(tmp_path, tmp_path)
    assert (found.steps, found.hours) == (500, "20:00-06:00")
    assert waits == [f"{key_of('steps')} stays 500, and 600 waits"]


# --- The commands ------------------------------------------------------------------------------


def test_the_site_sees_what_waits_and_accepts_it(engram, folder):
    state, file = folder / "state", folder / "policy.toml"
    file.write_text(STRICT)
    keep_policy(folder, state)
    status, out, _ = engram("policy", folder)
    rules, digest = out.splitlines()
    assert (status, rules) == (0, "in force: methods=['fedavg'], steps=500, hours=20:00-06:00")
    known = read_policy(folder).model_dump(mode="json", by_alias=True)
    text = json.dumps(known, sort_keys=True)
    assert digest == f"digest: {hashlib.sha256(text.encode()).hexdigest()}"
    file.write_text("steps = 600\n")
    status, out, err = engram("policy", folder)
    assert status == 1
    assert out.startswith("in force: methods=['fedavg'], steps=500, hours=20:00-06:00")
    assert "methods stays ('fedavg',), and ('*',) waits; steps stays 500, and 600 waits" in err
    assert f"engram policy {folder} --accept puts them in force" in err
    assert "steps=500, hours=20:00-06:00" in engram("status", folder)[1]
    assert engram("policy", folder, "--accept")[1].startswith("in force: steps=600\n")
    assert in_force(folder, state) == (Policy(steps=600), [])
    (line,) = Audit(state / "log").read().lines
    assert (line["kind"], line["why"]) == ("policy", "steps=600")
    assert "this node: its policy was accepted: steps=600" in engram("log", folder)[1]


def test_a_site_goes_on_without_a_policy_only_if_it_says_so(engram, folder):
    (folder / "policy.toml").write_text(STRICT)
    keep_policy(folder, folder / "state")
    (folder / "policy.toml").unlink()
    for command in ("node", "policy", "status", "ledger"):
        status, _, err = engram(command, folder)
        assert status == 2
        assert err.startswith("engram: this site's policy is gone: its operator puts it back, or")
    assert engram("policy", folder, "--accept")[1].startswith("in force: the defaults\n")
    assert engram("policy", folder)[1].startswith("in force: the defaults\n")


def test_a_node_keeps_its_policy_before_the_first_message(tmp_path, monkeypatch):
    (tmp_path / "policy.toml").write_text(STRICT)
    monkeypatch.setattr(node, "Way", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        node.run_node(None, tmp_path / "state", {"policy": str(tmp_path)}, stop=None)
    (tmp_path / "policy.toml").unlink()
    with pytest.raises(Refused, match="policy is gone"):
        in_force(tmp_path, tmp_path / "state")
