"""Sums that parties have helped to unmask: none is made twice, and none over other parties."""

import hashlib
import json
from collections.abc import Sequence, Set
from pathlib import Path

from engram.guards.secure.session import Session
from engram.settings.errors import Refused, few
from engram.settings.files import read_file, replace_file


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

    def check(
        self,
        party: int,
        session: Session,
        clients: Sequence[int] = (),
        parties: Set[int] = frozenset(),
    ) -> None:
        """Refuses a sum that tells more beside those that are unmasked.

        Args:
            party: The one who would help to unmask it.
            session: The terms.
            clients: The party's own.
            parties: Those whose updates are summed; empty while that is open.

        Raises:
            Refused: The training's sum of this round or a later one is unmasked, or a sum over
                others of updates from this model; or what is known cannot be read.
        """
        training, model = _names(session)
        last = self._read(party, training) or "0"
        try:
            later = session.number > int(last)
        except ValueError as error:
            raise _damaged(training) from error
        if not later:
            raise Refused(
                f"round must be above {last}, whose sum client-{party} has helped to unmask, "
                f"got {session.number}: who sums a round twice, over other sites, learns more; "
                "start a new run from this one's models, by --from"
            )
        before = self._read(party, model)
        if parties and before and before != _digest(session, clients, parties):
            raise Refused(
                f"sites of a sum must be those of the first sum of updates from this model, got "
                f"{few(sorted(parties))} in round {session.number}: the difference may be a single "
                "site's update; once those are there, start the run again with the same --out; "
                "else from another model (--from, or another seed)"
            )

    def note(self, party: int, session: Session, clients: Sequence[int], parties: Set[int]) -> None:
        """Notes a sum, before this party helps to unmask it; arguments as for ``check``.

        Raises:
            Refused: As ``check``, of another process of the site; or the disk cannot be written.
        """
        self.check(party, session, clients, parties)
        training, model = _names(session)
        self._write(party, training, str(session.number))
        self._write(party, model, _digest(session, clients, parties))

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


def _names(session: Session) -> tuple[str, str]:
    return f"memory/{session.training}/unmasked", f"sums/{session.model}"


def _digest(session: Session, clients: Sequence[int], parties: Set[int]) -> str:
    summed = [pair for pair in session.asked if pair[0] in parties]
    words = json.dumps([summed, session.most, [*clients]])
    return hashlib.sha256(words.encode()).hexdigest()


def _damaged(name: str) -> Refused:
    return Refused(f"this site cannot read {name} of its state: its operator removes it")
