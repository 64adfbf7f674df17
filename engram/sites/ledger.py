"""A node's privacy ledger: epsilon spent of its data sets, and the site's limit.

Every answer is a Gaussian release of sensitivity mu to the change of all data of a client: for
``privacy=local``, two clipped updates lie up to 2 C apart and have noise z C, so that mu = 2 / z.
Releases add up as ``mu^2 = sum mu_i^2``, whatever a server asks for next, and epsilon is a function
of that sum (``accounting.gaussian.epsilon_of``). For ``privacy=example`` the steps of an answer
are Poisson-subsampled Gaussian releases to the change of one row, which are counted by multiplier
and rate (``accounting.composition.Costs``), and so are releases of guards of which concentrated
privacy alone is known. A ledger that is deleted, or put back
as it was, is noticed by its head beside it: that is written after every line, so that it is the
ledger's last line or, after a crash, an earlier one, and knows all that was spent.

What an answer costs is on the disk before its noise is drawn, so that a node that is killed at any
instant may have noted too much, and never too little. An account is of rows, not of paths: data are
known again by their digest. Data that were not served before are charged to the last account, since
mostly they are the old ones and some more, until ``engram ledger --others`` says that they are of
others.
"""

import hashlib
import json
import math
import os
import re
import shlex
from collections.abc import Mapping
from json import JSONDecoder
from logging import getLogger
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from engram.settings.errors import Refused
from engram.settings.files import read_file, replace_file, sorted_json
from engram.sites.audit import stamp
from engram.sites.hash_chain import NOTHING, Chain, Fields
from engram.wire.clock import now

LEDGER: Final = "ledger"  # the ledger's folder in a node's state

ACCEPTED: Final = "accepted"
"""Kind of the line with which a ledger begins anew after damage, with all that is known."""

OTHERS: Final = "others"
"""Kind of a line by which the next data that are not known yet get an account of their own."""

_LARGEST: Final = 2**24  # bytes of a head
_CONCENTRATED: Final = "concentrated"
_KEY: Final = re.compile(rf"[0-9.e+-]+ (at [0-9.e-]+|{_CONCENTRATED})")

_log = getLogger("flwr.engram")

Steps = Mapping[str, int]
_NO_STEPS: Final[Steps] = {}


class Head(NamedTuple):
    """A ledger, as far as its last line."""

    line: int  # the line's number; 0 where there is no head
    hash: str  # the line's hash
    accounts: dict[str, int]  # the account of each data set, by digest
    totals: dict[int, float]  # the sum of mu^2 of each account
    steps: Mapping[int, Steps]  # numbers of each account's other releases: see ``Books``
    fault: str = ""  # what is wrong with the file; "" if it is whole, or none is there

    def behind(self, lines: list[dict[str, Any]], last: str) -> str:
        """Fault of a ledger that does not continue this head; "" if it does."""
        if self.fault or not self.line:
            return self.fault
        after = [*(line.get("before") for line in lines[self.line : self.line + 1]), last][0]
        if len(lines) >= self.line and after == self.hash:
            return ""
        was = "deleted" if not lines else "put back, or written anew"
        return f"the ledger has {len(lines)} lines and its head is line {self.line}: it was {was}"


_HEAD: Final = TypeAdapter(Head)


def read_head(file: Path) -> Head:
    """Reads a ledger's head.

    Raises:
        Refused: It cannot be read.
    """
    none = Head(0, "", {}, {}, {})
    try:
        return _HEAD.validate_json(read_file(file, most=_LARGEST, links=False))
    except FileNotFoundError:
        return none
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError:
        return none._replace(fault=f"{file} is not what was written")


def write_head(file: Path, head: Head) -> None:
    """Replaces a ledger's head, and waits until it is on the disk.

    Raises:
        OSError: It cannot be written.
    """
    fields = {name: value for name, value in head._asdict().items() if name != "fault"}
    replace_file(file, json.dumps(fields).encode())


class Spent(NamedTuple):
    """An account after an answer."""

    total: float  # the sum of mu^2
    epsilon: float  # epsilon of that sum, and of the steps
    steps: Mapping[str, int] = {}  # numbers of other releases, by ``key_of``

    @property
    def fields(self) -> Fields:
        """The entries of a line; steps only where there are some."""
        return {k: v for k, v in self._asdict().items() if k != "steps" or v}


def key_of(multiplier: float, rate: float | None = None) -> str:
    """Returns the name of a Poisson-subsampled Gaussian release in a ledger.

    Without a rate, that of one of which concentrated privacy alone is known.
    """
    return f"{multiplier!r} {_CONCENTRATED if rate is None else f'at {rate!r}'}"


class Books(NamedTuple):
    """A ledger, as it is on the disk."""

    lines: list[dict[str, Any]]  # its lines, the oldest first; empty where one is damaged
    fault: str  # what is wrong with it; "" if it is whole
    last: str  # hash of the last line
    accounts: dict[str, int]  # the account of each data set, by digest
    totals: dict[int, float]  # the sum of mu^2 of each account
    others: bool  # whether the next data set that is not known yet gets an account of its own
    steps: Mapping[int, Steps] = {}  # the other releases of each account

    def account(self, data: str) -> int:
        """Account of a data set."""
        if data in self.accounts:
            return self.accounts[data]
        last = max(self.totals, default=0)
        if self.others:
            return last + 1
        return next((x["account"] for x in reversed(self.lines) if "account" in x), last)

    def remedy(self, folder: Path) -> str:
        """Fault of the ledger of a client's folder, and how its operator goes on; "" if whole."""
        command = f"engram ledger {shlex.quote(str(folder))} --accept"
        how = "begins it anew, with what is known, once its operator has compared copies"
        return self.fault and f"{self.fault}; {command} {how}"

    def total(self, data: str) -> float:
        """Returns the sum of mu^2 that is spent of a data set's account."""
        return self.totals.get(self.account(data), 0.0)


class Ledger:
    """The ledger in a folder of a site that allows this epsilon."""

    def __init__(self, folder: Path, epsilon: float, delta: float) -> None:
        self.folder, self.epsilon, self.delta = folder, epsilon, delta
        self._chain = Chain(folder, LEDGER)
        self._head = folder.with_name(f"{folder.name}.head")

    def require(self, data: str, cost: float, steps: Steps = _NO_STEPS) -> Spent:
        """Account of a data set after an answer of this cost, mu^2, without noting it.

        Raises:
            Refused: The budget does not suffice, or the ledger is damaged or cannot be read.
        """
        return self._after(self.sound(), data, cost, steps)

    def spend(self, data: str, cost: float, fields: Fields, steps: Steps = _NO_STEPS) -> Spent:
        """Notes an answer's cost, mu^2, on the disk, and returns the account after it.

        Raises:
            Refused: The budget does not suffice, or the ledger is damaged or cannot be written.
        """
        try:
            with self._chain.alone():
                books = self.sound()
                after, account = self._after(books, data, cost, steps), books.account(data)
                line = {**fields, "data": data, "account": account, "cost": cost, **after.fields}
                line |= {"delta": self.delta}
                self._extend(line, books)
        except OSError as error:
            why = f"({error.strerror}), so that nothing leaves it"
            told = f"this site's ledger cannot be written {why}"
            _log.error("%s: make room in %s", told, self.folder)
            raise Refused(f"{told}: the site makes room") from error
        return after

    def read(self) -> Books:
        """Reads and checks the ledger; it is empty if there is none.

        Raises:
            Refused: It cannot be read.
        """
        key = _state_of(self._chain.file)
        if key is not None and key == _read.get(self._chain.file, (None,))[0]:
            return _read[self._chain.file][1]
        head = read_head(self._head)  # before the ledger, which may grow meanwhile
        lines, fault, last = self._chain.read()
        fault = _changed(lines) or fault or self._unclosed() or head.behind(lines, last)
        books = _added(Books([], fault, NOTHING, {}, {}, False), lines, last)
        if fault:
            books = _at_least(books, head)
        if key is not None and not fault:
            _read[self._chain.file] = key, books
        return books

    def spent(self, books: Books) -> dict[int, float]:
        """Returns epsilon of each account, at the site's delta."""
        if not books.totals:
            return {}
        found = sorted(books.totals.items())
        return {a: _epsilon(total, books.steps.get(a, {}), self.delta) for a, total in found}

    def in_words(self, books: Books) -> list[str]:
        """A line for each account: its epsilon, the limit, and the number of data sets."""
        limit = f" of {self.epsilon:g}" if self.epsilon else ""
        found = []
        for account, epsilon in self.spent(books).items():
            sets = sum(1 for number in books.accounts.values() if number == account)
            data = "1 data set" if sets == 1 else f"{sets} data sets"
            spent = f"epsilon {epsilon:.4g}{limit} at delta {self.delta:g}"
            found.append(f"account {account} ({data}): {spent}")
        if found and not self.epsilon:
            found.append("policy.toml sets no epsilon: nothing is counted, and nothing refused")
        return found or ["nothing is spent"]

    def sound(self) -> Books:
        """Returns the ledger.

        Raises:
            Refused: It is damaged, or cannot be read.
        """
        try:
            books = self.read()
        except Refused as error:
            raise Refused(
                "this site's ledger cannot be read, so that nothing leaves it: its operator looks "
                "at engram ledger CLIENT_FOLDER"
            ) from error
        if books.fault:
            raise Refused(
                "this site's ledger is damaged, so that nothing leaves it: its operator looks at "
                "engram ledger CLIENT_FOLDER, and goes on by --accept"
            )
        return books

    def declare_others(self) -> None:
        """Gives the next data that are not known yet an account of their own.

        Raises:
            Refused: The ledger is damaged.
            OSError: It cannot be written.
        """
        with self._chain.alone():
            self._extend({"kind": OTHERS}, self.sound())

    def accept(self) -> Path | None:
        """Begins a damaged ledger anew, with the most that any of its lines knows as spent.

        Returns:
            The damaged file, under its new name, or the new ledger, where that was deleted; None if
            the ledger is whole.

        Raises:
            OSError: It cannot be written.
        """
        with self._chain.alone():
            books, file = self.read(), self._chain.file
            if not books.fault:
                return None
            aside = _free(file) if file.exists() else file
            if aside != file:
                os.link(file, aside)  # and then replaced at once, so that there is always a ledger
            fields = {
                "kind": ACCEPTED,
                "why": books.fault,
                "accounts": books.accounts,
                "totals": {str(account): total for account, total in books.totals.items()},
                "steps": {str(account): steps for account, steps in books.steps.items()},
            }
            line = {"line": 1, "before": NOTHING, **_sealed(stamp(now()) | fields)}
            raw = json.dumps(line).encode()
            replace_file(file, raw + b"\n")
            write_head(self._head, _head_of(books, 1, hashlib.sha256(raw).hexdigest()))
            return aside

    def _after(self, books: Books, data: str, cost: float, steps: Steps) -> Spent:
        spent, before = books.total(data), books.steps.get(books.account(data), {})
        all_ = {key: before.get(key, 0) + steps.get(key, 0) for key in {**before, **steps}}
        after = _epsilon(spent + cost, all_, self.delta)
        if not after <= self.epsilon:
            so_far = _epsilon(spent, before, self.delta)
            raise Refused(
                f"this site's privacy budget is spent: epsilon {so_far:.4g} of {self.epsilon:g} at "
                f"delta {self.delta:g}, and {after:.4g} after this answer; the run may add more "
                "noise (noise-multiplier), or the site's operator allow more (epsilon in "
                "policy.toml)"
            )
        return Spent(spent + cost, after, all_)

    def _extend(self, fields: Fields, books: Books) -> None:
        def follow(last: Fields, lost: str) -> Fields:
            del last
            told = {"kind": "healed", "why": lost} if lost else fields
            return _sealed({**stamp(now()), **told})

        _read.pop(self._chain.file, None)  # unless all that follows succeeds
        added = self._chain.extend(follow)
        books = _added(books, [line for line, _ in added], added[-1][1])
        write_head(self._head, _head_of(books, len(books.lines), books.last))
        if (key := _state_of(self._chain.file)) is not None:
            _read[self._chain.file] = key, books

    def _unclosed(self) -> str:
        """Fault of the end of the file; "" if a crash left it so, or it is whole.

        The beginning of a line is what a crash leaves, of an answer that has not left. A line that
        has all but its end is damaged.
        """
        try:
            end = read_file(self._chain.file, links=False).rpartition(b"\n")[2]
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise Refused(f"{self._chain.file} cannot be read: {error.strerror}") from error
        try:
            JSONDecoder().raw_decode(end.decode(errors="replace"))
        except ValueError:
            return ""
        return f"the last line of the ledger is not closed: see {self._chain.file}"


_read: Final[dict[Path, tuple[tuple[int, ...] | None, Books]]] = {}
"""Ledgers that this process has found whole, with the state of the file: most answers are alike."""


def _epsilon(total: float, steps: Steps, delta: float) -> float:
    from engram.guards.accounting.composition import Costs  # noqa: PLC0415 - torch, which commands can do without

    sampled, concentrated = dict[tuple[float, float], int](), dict[float, int]()
    for key, count in steps.items():
        multiplier, _, *rate = key.split()
        if rate:
            sampled[float(multiplier), float(*rate)] = count
        else:
            concentrated[float(multiplier)] = count
    return Costs(total, sampled, concentrated).epsilon(delta)


def _state_of(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _added(books: Books, lines: list[dict[str, Any]], last: str) -> Books:
    """Returns books with further lines; of a damaged ledger, the most that any line says."""
    accounts, totals, others, steps = books.accounts, books.totals, books.others, {**books.steps}
    for line in lines:
        kind = line.get("kind")
        if kind == OTHERS:
            others = True
        elif kind == ACCEPTED and _is_sealed(line):
            accounts |= line["accounts"]
            totals |= {int(account): total for account, total in line["totals"].items()}
            steps |= {int(account): some for account, some in line.get("steps", {}).items()}
        elif (charge := _charge(line)) is not None:
            data, account, total = charge
            others = others and data in accounts
            accounts[data] = account
            totals[account] = max(total, totals.get(account, 0.0))
            if told := _steps(line):
                steps[account] = _most(told, steps.get(account, {}))
    books.lines.extend(lines)
    return books._replace(last=last, others=others, steps=steps)


def _head_of(books: Books, line: int, last: str) -> Head:
    return Head(line, last, books.accounts, books.totals, books.steps)


def _at_least(books: Books, head: Head) -> Books:
    """Books of a damaged ledger, completed from its head."""
    accounts, totals, steps = head.accounts | books.accounts, dict(books.totals), dict(books.steps)
    for account, total in head.totals.items():
        totals[account] = max(total, totals.get(account, 0.0))
    for account, known in head.steps.items():
        steps[account] = _most(known, steps.get(account, {}))
    return books._replace(accounts=accounts, totals=totals, steps=steps)


def _most(one: Steps, other: Steps) -> Steps:
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in {**one, **other}}


def _charge(line: Mapping[str, Any]) -> tuple[str, int, float] | None:
    data, account, total = (line.get(key) for key in ("data", "account", "total"))
    if isinstance(data, str) and isinstance(account, int) and isinstance(total, float):
        return (data, account, total) if math.isfinite(total) else None
    return None


def _steps(line: Mapping[str, Any]) -> Steps:
    """Returns the other releases that a line says, as far as it is whole."""
    told = line.get("steps")
    if not isinstance(told, dict):
        return {}
    return {k: n for k, n in told.items() if _KEY.fullmatch(k) and isinstance(n, int) and n > 0}


def _sealed(fields: Fields) -> Fields:
    """A line's fields with their digest, so that damage to the last line shows, too."""
    return {**fields, "digest": hashlib.sha256(sorted_json({**fields})).hexdigest()}


def _is_sealed(line: Mapping[str, Any]) -> bool:
    fields = {k: v for k, v in line.items() if k not in ("line", "before", "digest")}
    return bool(_sealed(fields)["digest"] == line.get("digest"))


def _changed(lines: list[dict[str, Any]]) -> str:
    wrong = next((n for n, line in enumerate(lines, start=1) if not _is_sealed(line)), 0)
    return f"line {wrong} of the ledger is not what was written" if wrong else ""


def _free(file: Path) -> Path:
    number = 1
    while (aside := file.with_suffix(f".damaged-{number}")).exists():
        number += 1
    return aside
