"""The head of a ledger, kept beside its folder, which shows that one is deleted or put back.

It is written after every line, and so it is the ledger's last line or, after a crash, an earlier
one. It knows all that was spent, which a ledger that is gone does not.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engram.settings.errors import Refused
from engram.settings.files import read_file, replace_file

_LARGEST = 2**24  # bytes


class Head(NamedTuple):
    """A ledger, as far as its last line.

    Attributes:
        line: The line's number; 0 where there is no head.
        hash: The line's hash.
        accounts: The account of each data set, by digest.
        totals: The sum of mu^2 of each account.
        steps: Numbers of each account's sampled releases: see ``engram.sites.ledger.Books``.
        fault: What is wrong with the file; "" if it is whole, or none is there.
    """

    line: int
    hash: str
    accounts: dict[str, int]
    totals: dict[int, float]
    steps: Mapping[int, Mapping[str, int]] = {}
    fault: str = ""

    def behind(self, lines: list[dict[str, Any]], last: str) -> str:
        """Returns what is wrong with a ledger that does not go on from here; "" if it does.

        Args:
            lines: The ledger's lines.
            last: Hash of the last one.
        """
        if self.fault or not self.line:
            return self.fault
        after = [*(line.get("before") for line in lines[self.line : self.line + 1]), last][0]
        if len(lines) >= self.line and after == self.hash:
            return ""
        was = "deleted" if not lines else "put back, or written anew"
        return f"the ledger has {len(lines)} lines and its head is line {self.line}: it was {was}"


def read_head(file: Path) -> Head:
    """Reads a ledger's head.

    Raises:
        Refused: It cannot be read.
    """
    none = Head(0, "", {}, {})
    try:
        found = json.loads(read_file(file, most=_LARGEST, links=False))
        totals = {int(account): float(total) for account, total in found["totals"].items()}
        accounts = {str(data): int(account) for data, account in found["accounts"].items()}
        steps = {
            int(account): {str(key): int(count) for key, count in each.items()}
            for account, each in found["steps"].items()
        }
        return Head(int(found["line"]), str(found["hash"]), accounts, totals, steps)
    except FileNotFoundError:
        return none
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return none._replace(fault=f"{file} is not what was written")


def write_head(file: Path, head: Head) -> None:
    """Replaces a ledger's head, and waits until it is on the disk.

    Raises:
        OSError: It cannot be written.
    """
    fields = {name: value for name, value in head._asdict().items() if name != "fault"}
    replace_file(file, json.dumps(fields).encode())
