"""A node's ledger: it adds up, forgets nothing in a crash, and shows damage."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import product
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.data.readers.digests import digest_of
from engram.data.source import Source
from engram.guards.accounting.releases import Release
from engram.guards.guard import Guard
from engram.settings.errors import Refused
from engram.settings.fingerprint import source_root
from engram.sites import hash_chain as chain
from engram.sites import ledger as module
from engram.sites import privacy_account
from engram.sites.ledger import Ledger
from tests.samples import entry
from tests.sites.budgets import DELTA, LOCAL, epsilon_of
from tests.support import small_of_any

LINE = {"kind": "train", "run": 1, "round": 1}
DATA = "a" * 64


@pytest.fixture(autouse=True)
def _afresh():
    module._read.clear()


def ledger(folder, epsilon=10.0):
    return Ledger(folder / "ledger", epsilon, DELTA)


def reread(folder):
    """The ledger as another process finds it."""
    module._read.clear()
    return ledger(folder).read()


def spend(folder, *costs, data=DATA):
    for cost in costs:
        ledger(folder).spend(data, cost, LINE)


def test_releases_that_are_merely_concentrated_are_composed_as_such(tmp_path):
    """Beside normal ones of rho = mu^2 / 2, each of z has 1 / (2 z^2); rho adds up.

    By the tails of the privacy loss, E exp((a - 1) L) <= exp((a - 1) a rho) for every a > 1, and
    Markov's bound, P(L > epsilon) <= delta for the least over a of a rho + ln(1 / delta) / (a - 1).
    """
    account, books = [], ledger(tmp_path)
    for cost, steps in [
        (0.04, {"2.0 concentrated": 3}),
        (0.01, {}),
        (0.0, {"5.0 concentrated": 1}),
    ]:
        account.append(books.spend(DATA, cost, LINE, steps).epsilon)
    rho = np.cumsum([0.04 / 2 + 3 / (2 * 2**2), 0.01 / 2, 1 / (2 * 5**2)])
    order = 1 + np.geomspace(1e-3, 1e3, 200_001)
    for found, total in zip(account, rho, strict=True):
        assert found == pytest.approx((order * total - np.log(DELTA) / (order - 1)).min(), rel=1e-6)
        assert found > 1.02 * epsilon_of([2 * total])  # as if they were normal
    assert ledger(tmp_path).spent(reread(tmp_path)) == {0: account[-1]}
    with pytest.raises(Refused, match="budget is spent"):
        ledger(tmp_path, account[-1]).require(DATA, 0.0, {"2.0 concentrated": 1})


def test_an_answer_is_charged_for_noise_that_is_not_normal_by_its_own_kind(monkeypatch):
    found = Release(4.0, neighbors="replaced"), Release(2.0, times=3, normal=False)
    guard = Guard("mine", releases=lambda plan: found)
    monkeypatch.setattr(privacy_account, "protections", lambda e: guard)
    account = privacy_account.Account(None, DATA, small_of_any(**LOCAL), "", [9], "")
    assert account._cost() == (1 / 16, {"2.0 concentrated": 3})


@given(st.lists(st.floats(1e-6, 4.0), max_size=12))
def test_it_is_an_independent_recount(tmp_path_factory, costs):
    folder, paid = tmp_path_factory.mktemp("site"), []
    for cost in costs:
        if epsilon_of([*paid, cost]) <= 6.0:
            paid.append(cost)
            after = ledger(folder, 6.0).spend(DATA, cost, LINE)
            assert after.epsilon == pytest.approx(epsilon_of(paid), rel=1e-6)
        else:
            with pytest.raises(Refused, match="this site's privacy budget is spent: epsilon"):
                ledger(folder, 6.0).spend(DATA, cost, LINE)
    found = reread(folder)
    assert [line["cost"] for line in found.lines] == paid
    assert found.total(DATA) == pytest.approx(sum(paid))
    assert found.fault == ""


def test_what_was_found_whole_is_not_read_again_until_it_changes(tmp_path, monkeypatch):
    spend(tmp_path, 0.1, 0.1)
    assert reread(tmp_path) == ledger(tmp_path).read()
    monkeypatch.setattr(module.Chain, "read", lambda chain: pytest.fail("it was read again"))
    spend(tmp_path, 0.1)
    assert ledger(tmp_path).read().total(DATA) == pytest.approx(0.3)
    file = tmp_path / "ledger" / "ledger.jsonl"
    file.write_bytes(file.read_bytes())
    with pytest.raises(pytest.fail.Exception):
        ledger(tmp_path).read()


# --- Accounts ----------------------------------------------------------------------------------


def test_data_are_known_again_wherever_they_lie(tmp_path):
    for name in ("a.npz", "b.npz"):
        np.savez(tmp_path / name, x=np.zeros((3, 2)), y=np.arange(3))
    first, second = (digest_of([Source(f"npz:{tmp_path}/{name}.npz")]) for name in "ab")
    assert first == second
    np.savez(tmp_path / "b.npz", x=np.ones((3, 2)), y=np.arange(3))
    assert digest_of([Source(f"npz:{tmp_path}/b.npz")]) != first
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "1.png").write_bytes(b"x")
    before = digest_of([Source(f"images:{tmp_path}/images")])
    (tmp_path / "images" / "cat" / "1.png").write_bytes(b"y")
    assert digest_of([Source(f"images:{tmp_path}/images")]) != before
    assert digest_of([Source("digits")]) == digest_of([Source("permuted-digits")])
    assert digest_of([Source("digits")]) != digest_of([Source("mnist")])


def test_changed_data_are_charged_to_the_account_of_the_old_ones(tmp_path):
    spend(tmp_path, 0.5)
    spend(tmp_path, 0.25, data="b" * 64)
    assert reread(tmp_path).total(DATA) == pytest.approx(0.75)


def test_data_of_others_have_an_account_of_their_own_once_the_site_says_so(tmp_path):
    spend(tmp_path, 0.5)
    ledger(tmp_path).declare_others()
    spend(tmp_path, 0.5)  # known data are nobody else's
    spend(tmp_path, 0.25, data="b" * 64)
    spend(tmp_path, 0.25, data="c" * 64)  # said once, for the next data alone
    found = reread(tmp_path)
    assert (found.total(DATA), found.total("b" * 64)) == pytest.approx((1.0, 0.5))
    assert found.account("b" * 64) == found.account("c" * 64) == found.account("d" * 64)
    spend(tmp_path, 0.25)
    assert reread(tmp_path).account("d" * 64) == found.account(DATA)  # the last that was served


def test_those_who_spend_at_the_same_time_take_turns(tmp_path):
    each = [Thread(target=spend, args=(tmp_path, *[0.01] * 20)) for _ in range(2)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    found = reread(tmp_path)
    assert (len(found.lines), found.fault) == (40, "")
    assert found.total(DATA) == pytest.approx(0.4)


# --- Crashes -----------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of a process, which no code of it outlives."""


@pytest.mark.parametrize("call", ["open", "fdopen", "fsync"])
def test_a_node_that_is_killed_never_forgets(tmp_path, call):
    """At each call by which it writes, before and after it."""
    for begun, after, number in product((0, 2), (False, True), (1, 2, 3)):
        with entry(begun, after, number):
            folder = tmp_path / f"{begun}-{after}-{number}"
            folder.mkdir()
            check_kill(folder, begun, call, after, number)


def check_kill(folder, begun, call, after, number):
    """Kills a node at a call, and has it go on."""
    spend(folder, *[0.1] * begun)
    real, calls, answered = getattr(os, call), [0], 0

    def dies(*args, **options):
        calls[0] += 1
        if calls[0] == number and not after:
            raise Killed
        found = real(*args, **options)
        if calls[0] == number:
            raise Killed
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, dies)
        try:
            for _ in range(3):
                spend(folder, 0.1)
                answered += 1
        except Killed:
            pass
    assert calls[0] >= number
    found = reread(folder)
    assert found.fault == ""
    known = round(found.total(DATA) / 0.1)
    assert begun + answered <= known <= begun + answered + 1
    spend(folder, 0.1)
    assert reread(folder).total(DATA) == pytest.approx(0.1 * (known + 1))


def test_a_line_that_a_crash_cut_off_was_of_no_answer(tmp_path):
    for left in (1, 17, 200):
        folder = tmp_path / str(left)
        file, head = folder / "ledger" / "ledger.jsonl", folder / "ledger.head"
        spend(folder, 0.1, 0.1)
        whole, before = file.read_bytes(), head.read_bytes()
        spend(folder, 0.1)
        file.write_bytes(whole + file.read_bytes()[len(whole) :][:left])
        head.write_bytes(before)
        with entry(left):
            assert reread(folder).total(DATA) == pytest.approx(0.2)
            spend(folder, 0.1)
            found = reread(folder)
            assert [line["kind"] for line in found.lines] == ["train", "train", "healed", "train"]
            assert (found.total(DATA), found.fault) == (pytest.approx(0.3), "")


@pytest.mark.processes
def test_a_process_that_is_killed_never_forgets(tmp_path):
    """It says each answer after the ledger has it, and is killed while it writes."""
    code = f"""
from pathlib import Path
from engram.sites.ledger import Ledger
book = Ledger(Path({str(tmp_path / "ledger")!r}), 1e6, 1e-5)
while True:
    book.spend({DATA!r}, 0.1, {{"kind": "train"}})
    print("answered", flush=True)
"""
    answered = 0
    for lines in (3, 40):
        child = subprocess.Popen(
            [sys.executable, "-c", code], cwd=source_root(), stdout=subprocess.PIPE, text=True
        )
        for _ in range(lines):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        answered += lines + len(child.stdout.readlines())
        child.wait()
        found = reread(tmp_path)
        assert found.fault == ""
        assert answered <= round(found.total(DATA) / 0.1) <= answered + 2


# --- Damage ------------------------------------------------------------------------------------


def test_any_changed_byte_stops_all_answers_or_takes_nothing(tmp_path):
    spend(tmp_path, 0.1, 0.2)
    file = tmp_path / "ledger" / "ledger.jsonl"
    whole = file.read_bytes()
    for at in range(len(whole)):
        for mask in (1, 0x20):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
            found = reread(tmp_path)
            same = found.total(DATA) == pytest.approx(0.3, rel=1e-12)  # a number's last digit
            assert found.fault or same, (at, whole[at - 20 : at + 20])


def test_a_damaged_ledger_goes_on_with_what_is_known_once_it_is_accepted(tmp_path):
    for what, change in {
        "cut off in front": lambda lines: lines[1:],
        "taken out": lambda lines: [lines[0], *lines[2:]],
        "zeros": lambda lines: [*lines[:2], b"\0" * 20],
        "changed": lambda lines: [*lines[:2], lines[2].replace(b'"run": 1', b'"run": 2')],
        "nothing is left": lambda lines: [b"x"],
    }.items():
        folder = tmp_path / what
        spend(folder, 0.1, 0.2, 0.3)
        file = folder / "ledger" / "ledger.jsonl"
        damaged = b"".join(line + b"\n" for line in change(file.read_bytes().splitlines()))
        file.write_bytes(damaged)
        module._read.clear()
        with entry(what):
            with pytest.raises(Refused, match="ledger is damaged, so that nothing leaves it"):
                spend(folder, 0.1)
            with pytest.raises(Refused, match="is damaged"):
                ledger(folder).require(DATA, 0.1)
            assert file.read_bytes() == damaged
            aside = ledger(folder).accept()
            assert aside.read_bytes() == damaged
            found = reread(folder)
            assert (found.fault, found.lines[0]["kind"]) == ("", "accepted")
            assert found.total(DATA) == pytest.approx(0.6)
            spend(folder, 0.1)
            assert reread(folder).total(DATA) == pytest.approx(0.7)
            assert ledger(folder).accept() is None
            file.write_bytes(b"{}\n")
            module._read.clear()
            assert ledger(folder).accept() not in (None, aside)


def test_a_ledger_that_is_deleted_or_put_back_is_noticed_and_what_it_spent_is_known(tmp_path):
    for gone, lines, was in [
        ("file", 0, "deleted"),
        ("folder", 0, "deleted"),
        ("rest", 1, "put back, or written anew"),
    ]:
        site, file = tmp_path / gone, tmp_path / gone / "ledger" / "ledger.jsonl"
        spend(site, 0.1)
        old = file.read_bytes()
        spend(site, 0.2, 0.3)
        shutil.rmtree(file.parent)
        if gone != "folder":
            file.parent.mkdir()
        if gone == "rest":
            file.write_bytes(old)
        with entry(gone):
            with pytest.raises(Refused, match="ledger is damaged, so that nothing leaves it"):
                spend(site, 0.1)  # of a node that has read it before, too
            fault = f"the ledger has {lines} lines and its head is line 3: it was {was}"
            assert reread(site).fault == fault
            assert (ledger(site).accept() == file) == (gone != "rest")
            assert reread(site).total(DATA) == pytest.approx(0.6)
            spend(site, 0.1)
            assert (reread(site).total(DATA), reread(site).fault) == (pytest.approx(0.7), "")


def test_a_ledger_that_is_written_anew_is_noticed(tmp_path):
    spend(tmp_path / "one", *[0.1] * 3)
    spend(tmp_path / "other", *[0.01] * 3)
    shutil.copytree(tmp_path / "other" / "ledger", tmp_path / "one" / "ledger", dirs_exist_ok=True)
    assert reread(tmp_path / "one").fault.endswith("it was put back, or written anew")


def test_a_damaged_head_stops_answers_until_it_is_accepted(tmp_path):
    spend(tmp_path, 0.1)
    file = tmp_path / "ledger.head"
    without = json.loads(file.read_text())
    del without["steps"]
    texts = ["", "[]", "{}", '{"line": 1}', '{"line": "x", "hash": ""}', json.dumps(without)]
    for text in [*texts, "[" * 9999]:
        file.write_text(text)
        module._read.clear()
        with entry(text):
            assert reread(tmp_path).fault == f"{file} is not what was written"
            ledger(tmp_path).accept()
            found = reread(tmp_path)
            assert (found.fault, found.total(DATA)) == ("", pytest.approx(0.1))


def test_a_ledger_of_before_heads_goes_on(tmp_path):
    spend(tmp_path, 0.1, 0.1)
    (tmp_path / "ledger.head").unlink()
    module._read.clear()
    spend(tmp_path, 0.1)
    assert (reread(tmp_path).total(DATA), reread(tmp_path).fault) == (pytest.approx(0.3), "")


def test_an_answer_reads_no_line_but_the_last_however_long_the_ledger_is(tmp_path, monkeypatch):
    """So that the 10,000th request costs as much as the 10th."""
    parsed, real = [], chain._parsed
    monkeypatch.setattr(chain, "_parsed", lambda raw: parsed.append(raw) or real(raw))
    work = []
    for _ in range(60):
        spend(tmp_path, 0.001)
        work.append(len(parsed))
        parsed.clear()
    assert len({*work[1:]}) == 1
    assert work[-1] == 1


def test_who_is_killed_while_accepting_loses_nothing(tmp_path, monkeypatch):
    for call, number in product(["link", "fsync", "open", "fdopen"], [1, 2]):
        folder = tmp_path / f"{call}-{number}"
        spend(folder, 0.1, 0.2)
        file = folder / "ledger" / "ledger.jsonl"
        first, second = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(first.replace(b'"run": 1', b'"run": 3') + second)
        module._read.clear()
        real, calls = getattr(os, call), [0]

        def dies(*args, real=real, calls=calls, number=number, **options):
            calls[0] += 1
            if calls[0] == number:
                raise Killed
            return real(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, dies)
            with contextlib.suppress(Killed):
                ledger(folder).accept()
        found = reread(folder)
        with entry(call, number):
            assert found.fault or found.lines[0]["kind"] == "accepted"
            assert found.total(DATA) == pytest.approx(0.3)


def test_a_line_has_no_more_than_json_says(tmp_path):
    spend(tmp_path, 0.1)
    (raw,) = (tmp_path / "ledger" / "ledger.jsonl").read_text().splitlines()
    assert json.loads(raw).keys() == {
        *("line", "before", "time", "kind", "run", "round", "data", "account", "cost", "total"),
        *("epsilon", "delta", "digest"),
    }
