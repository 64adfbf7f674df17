"""Sums that parties have helped to unmask: none is made twice, and none over other parties."""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from engram.guards.secure.session import Session
from engram.settings.errors import Refused, few
from engram.settings.files import read_file, replace_file


class Summed(NamedTuple):
    """A sum of updates, as a party knows it."""

    clients: list[int]  # the party's own
    survivors: frozenset[int]  # the parties whose updates are summed


class Sums:
    """The last round of each training, and the parties of each model's sum.

    A server that has two sums of updates from one model, over sets of parties that differ, learns
    more than either sum: over {1, 2}, {2, 3} and {1, 3} it learns every single update. So a party
    helps to unmask sums from one model over the same parties, clients and weights alone.

    They outlive the process in ``folder``, or are kept in memory without one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._texts: dict[tuple[int, str], str] = {}

    def check(self, party: int, session: Session, summed: Summed | None = None) -> None:
        """Refuses a sum that tells more beside those that are unmasked.

        ``summed`` is None while it is open what the sum is over.

        Raises:
            Refused: The training's sum of this round or a later one is unmasked, or a sum over
                others of updates from this model; or what is known cannot be read.
        """
        last = self._read(party, _of_training(session)) or "0"
        try:
            later = session.number > int(last)
        except ValueError as error:
            raise _damaged(_of_training(session)) from error
        if not later:
            raise Refused(
                f"round must be above {last}, whose sum client-{party} has helped to unmask, "
                f"got {session.number}: who sums a round twice, over other sites, learns more"
            )
        before = self._read(party, _of_model(session))
        if summed and before and before != _digest(session, summed):
            raise Refused(
                f"sites of a sum must be those of the first sum of updates from this model, got "
                f"{few(sorted(summed.survivors))} in round {session.number}: the difference may be "
                "a single site's update; begin from another model, such as by another seed"
            )

    def note(self, party: int, session: Session, summed: Summed) -> None:
        """Notes a sum, before this party helps to unmask it.

        Raises:
            Refused: As ``check``, of what another process of the site has noted; or the disk
                cannot be written.
        """
        self.check(party, session, summed)
        self._write(party, _of_training(session), str(session.number))
        self._write(party, _of_model(session), _digest(session, summed))

    def _read(self, party: int, name: str) -> str:
        if self._folder is None:
            return self._texts.get((party, name), "")
        try:
            return read_file(self._folder / name, most=100).decode() or "nothing"
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            raise _damaged(name) from error

    def _write(self, party: int, name: str, text: str) -> None:
        if self._folder is None:
            self._texts[party, name] = text
            return
        path = self._folder / name
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, text.encode())
        except OSError as error:
            raise Refused(f"this site's disk cannot be written: {error.strerror}") from error


def _of_training(session: Session) -> str:
    return f"memory/{session.training}/unmasked"


def _of_model(session: Session) -> str:
    return f"sums/{session.model}"


def _digest(session: Session, summed: Summed) -> str:
    parties = [pair for pair in session.asked if pair[0] in summed.survivors]
    words = json.dumps([parties, session.most, summed.clients])
    return hashlib.sha256(words.encode()).hexdigest()


def _damaged(name: str) -> Refused:
    return Refused(f"this site cannot read {name} of its state: its operator removes it")
