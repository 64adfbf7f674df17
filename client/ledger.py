"""A node's ledger: what its data sets have spent of the total epsilon that their site allows.

Every answer is a Gaussian release of sensitivity mu to the change of all data of a client: for
``privacy=local``, two clipped updates lie up to 2 C apart and have noise z C, so that mu = 2 / z.
Releases add up as ``mu^2 = sum mu_i^2``, whatever a server asks for next, and epsilon is a function
of that sum (``engram.privacy.epsilon_of``).

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
from collections.abc import Mapping
from json import JSONDecoder
from logging import getLogger
from pathlib import Path
from typing import Any, Final, NamedTuple

from client.audit import stamp
from client.chain import NOTHING, Chain, Fields
from federation.clock import now
from federation.errors import Refused
from federation.files import read_file, replace_file

__all__ = ["LEDGER", "Books", "Ledger", "Spent"]

LEDGER: Final = "ledger"
"""The ledger's folder in a node's state."""

ACCEPTED: Final = "accepted"
"""Kind of the line with which a ledger begins anew after damage, with all that is known."""

OTHERS: Final = "others"
"""Kind of a line by which the next data that are not known yet get an account of their own."""

_log = getLogger("flwr.engram")


class Spent(NamedTuple):
    """An account after an answer.

    Attributes:
        total: The sum of mu^2.
        epsilon: Epsilon of that sum.
    """

    total: float
    epsilon: float


class Books(NamedTuple):
    """A ledger, as it is on the disk.

    Attributes:
        lines: Its lines, the oldest first; empty where one is damaged.
        fault: What is wrong with it; "" if it is whole.
        last: Hash of the last line.
        accounts: The account of each data set, by digest.
        totals: The sum of mu^2 of each account.
        others: Whether the next data set that is not known yet gets an account of its own.
    """

    lines: list[dict[str, Any]]
    fault: str
    last: str
    accounts: dict[str, int]
    totals: dict[int, float]
    others: bool

    def account(self, data: str) -> int:
        """Returns the account to which a data set is charged."""
        if data in self.accounts:
            return self.accounts[data]
        last = max(self.totals, default=0)
        if self.others:
            return last + 1
        return next((x["account"] for x in reversed(self.lines) if "account" in x), last)

    def total(self, data: str) -> float:
        """Returns the sum of mu^2 that is spent of a data set's account."""
        return self.totals.get(self.account(data), 0.0)


class Ledger:
    """The ledger in a folder.

    Args:
        folder: Made with the first line.
        epsilon: The total that the site allows; positive.
        delta: Its delta.
    """

    def __init__(self, folder: Path, epsilon: float, delta: float) -> None:
        self.folder, self.epsilon, self.delta = folder, epsilon, delta
        self._chain = Chain(folder, LEDGER)

    def require(self, data: str, cost: float) -> Spent:
        """Returns the account of a data set after an answer of this cost, which is not noted.

        Args:
            data: Digest of the data set.
            cost: mu^2 of the answer.

        Raises:
            Refused: The budget does not suffice, or the ledger is damaged or cannot be read.
        """
        return self._after(self.sound(), data, cost)

    def spend(self, data: str, cost: float, fields: Fields) -> Spent:
        """Notes an answer's cost, and waits until that is on the disk.

        Args:
            data: Digest of the data set.
            cost: mu^2 of the answer.
            fields: What the line says of the answer.

        Returns:
            The account after it.

        Raises:
            Refused: The budget does not suffice, or the ledger is damaged or cannot be written.
        """
        try:
            with self._chain.alone():
                books = self.sound()
                after, account = self._after(books, data, cost), books.account(data)
                line = {**fields, "data": data, "account": account, "cost": cost, **after._asdict()}
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
        lines, fault, last = self._chain.read()
        fault = fault or self._unclosed() or _changed(lines)
        books = _added(Books([], fault, NOTHING, {}, {}, False), lines, last)
        if key is not None and not fault:
            _read[self._chain.file] = key, books
        return books

    def spent(self, books: Books) -> dict[int, float]:
        """Returns epsilon of each account, at the site's delta."""
        if not books.totals:
            return {}
        from engram.privacy import epsilon_of  # noqa: PLC0415 - torch, which a command need not have

        found = sorted(books.totals.items())
        return {account: epsilon_of(math.sqrt(total), self.delta) for account, total in found}

    def in_words(self, books: Books) -> list[str]:
        """Returns a line for each account: what of how much it has spent, with how many data."""
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
            _log.error("%s", error)
            raise Refused(
                "this site's ledger cannot be read, so that nothing leaves it: its log says more"
            ) from error
        if books.fault:
            _log.error("%s: engram ledger --accept begins it anew, with what is known", books.fault)
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
            The damaged file, under its new name; None if the ledger is whole.

        Raises:
            OSError: It cannot be written.
        """
        with self._chain.alone():
            books, file = self.read(), self._chain.file
            if not books.fault:
                return None
            aside = _free(file)
            os.link(file, aside)  # and then replaced at once, so that there is always a ledger
            fields = {
                "kind": ACCEPTED,
                "why": books.fault,
                "accounts": books.accounts,
                "totals": {str(account): total for account, total in books.totals.items()},
            }
            line = {"line": 1, "before": NOTHING, **_sealed(stamp(now()) | fields)}
            replace_file(file, json.dumps(line).encode() + b"\n")
            return aside

    def _after(self, books: Books, data: str, cost: float) -> Spent:
        from engram.privacy import epsilon_of  # noqa: PLC0415 - torch, which a command need not have

        spent = books.total(data)
        after = epsilon_of(math.sqrt(spent + cost), self.delta)
        if not after <= self.epsilon:
            so_far = epsilon_of(math.sqrt(spent), self.delta)
            raise Refused(
                f"this site's privacy budget is spent: epsilon {so_far:.4g} of {self.epsilon:g} at "
                f"delta {self.delta:g}, and {after:.4g} after this answer; the run may add more "
                "noise (noise-multiplier), or the site's operator allow more (epsilon in "
                "policy.toml)"
            )
        return Spent(spent + cost, after)

    def _extend(self, fields: Fields, books: Books) -> None:
        def follow(last: Fields, lost: str) -> Fields:
            del last
            told = {"kind": "healed", "why": lost} if lost else fields
            return _sealed({**stamp(now()), **told})

        _read.pop(self._chain.file, None)  # unless all that follows succeeds
        added = self._chain.extend(follow)
        books = _added(books, [line for line, _ in added], added[-1][1])
        if (key := _state_of(self._chain.file)) is not None:
            _read[self._chain.file] = key, books

    def _unclosed(self) -> str:
        """Returns what is wrong with the end of the file; "" if it is a crash's, or whole.

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


def _state_of(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _added(books: Books, lines: list[dict[str, Any]], last: str) -> Books:
    """Returns books with further lines; of a damaged ledger, the most that any line says."""
    accounts, totals, others = books.accounts, books.totals, books.others
    for line in lines:
        kind = line.get("kind")
        if kind == OTHERS:
            others = True
        elif kind == ACCEPTED and _is_sealed(line):
            accounts |= line["accounts"]
            totals |= {int(account): total for account, total in line["totals"].items()}
        elif (known := _charge(line)) is not None:
            data, account, total = known
            others = others and data in accounts
            accounts[data] = account
            totals[account] = max(total, totals.get(account, 0.0))
    books.lines.extend(lines)
    return books._replace(last=last, others=others)


def _charge(line: Mapping[str, Any]) -> tuple[str, int, float] | None:
    data, account, total = (line.get(key) for key in ("data", "account", "total"))
    if isinstance(data, str) and isinstance(account, int) and isinstance(total, float):
        return (data, account, total) if math.isfinite(total) else None
    return None


def _sealed(fields: Fields) -> Fields:
    """Returns a line's fields with their digest, by which damage to the last line shows, too."""
    text = json.dumps({**fields}, sort_keys=True)
    return {**fields, "digest": hashlib.sha256(text.encode()).hexdigest()}


def _is_sealed(line: Mapping[str, Any]) -> bool:
    fields = {k: v for k, v in line.items() if k not in ("line", "before", "digest")}
    return bool(_sealed(fields)["digest"] == line.get("digest"))


def _changed(lines: list[dict[str, Any]]) -> str:
    wrong = next((n for n, line in enumerate(lines, start=1) if not _is_sealed(line)), 0)
    return f"line {wrong} of the ledger is not what was written" if wrong else ""


def _free(file: Path) -> Path:
    """Returns a name beside a file's that no file has."""
    number = 1
    while (aside := file.with_suffix(f".damaged-{number}")).exists():
        number += 1
    return aside
