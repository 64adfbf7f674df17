"""Withdrawals: a client leaves with its data, and models are retrained without it.

A client is in a run from the first round in which it is a member. From then on its rows may count
before it trains: in the units of columns, in the scores by which rounds are picked, in the bound of
weights. So a run is exact without it from a checkpoint of an earlier round, or from the beginning.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from engram.core.checks import must
from engram.runs.checkpoints import checkpoints_in
from engram.runs.run import Run, is_run, took_part
from engram.runs.writer import RunWriter
from engram.settings.errors import EngramError, Refused
from engram.settings.experiment import Experiment
from engram.settings.files import replace_file
from engram.wire.checksums import summed

_NOTE = "withdrawal.json"
_LINKS = {"start-from": "started from", "participation": "repeats"}


class Heir(NamedTuple):
    """A run that has a client's updates by way of another: it started from it, or repeats it."""

    folder: Path
    link: str  # ``started from``, or ``repeats``
    of: Path  # the folder of the other run


class Withdrawal(NamedTuple):
    """A client's part in a run, and all that has its updates."""

    run: Path  # the run's folder
    client: int
    # The first round in which it was a member; 0 if it was one when the run began, or the run
    # started from one that it was a member of.
    since: int
    took_part: int  # number of rounds whose model learned from it
    models: list[Path]  # folders of checkpoints that have its updates
    heirs: list[Heir]  # other runs that have them
    # The last round before ``since`` of which there is a checkpoint; None without one.
    base: int | None
    former: Path | None  # the run that this one started from, if that has the client's updates
    exports: list[Path]  # folders of the models exported from these runs that have its updates

    def to_json(self) -> dict[str, Any]:
        """Contents of ``withdrawal.json``: the fields, with absolute paths."""
        return {
            "run": str(self.run.absolute()),
            "client": self.client,
            "since": self.since,
            "took-part": self.took_part,
            "models": [str(path.absolute()) for path in self.models],
            "runs": [str(heir.folder.absolute()) for heir in self.heirs],
            "exports": [str(path) for path in self.exports],
            "retrained-from": self.base,
        }


def withdrawal_of(run: Path, client: str, places: Iterable[Path]) -> Withdrawal:
    """Looks up a client's part in a run.

    Args:
        run: The run's folder.
        client: The client's name there, or its number, or ``client-N``.
        places: Folders of runs, in which others are looked for that have the client's updates.

    Raises:
        Refused: There is no such run or client, the run goes on at this moment, or it has nothing
            of the client.
    """
    record = Run.open(run)
    number = _number(record, client)
    if record.held:
        raise Refused(f"{run} goes on at this moment: stop it first, by engram stop or Ctrl-C")
    rows, came, former = record.rows(), _came(record, number), _tainted(record, number)
    if came is None and former is None:
        raise Refused(f"{run} has nothing of client {client}, which was never a member of it")
    since = 0 if came is None or former is not None else came
    learned = sum(number in took_part(row) for row in rows)
    kept = [record.checkpoints(), *map(checkpoints_in, record.picked_folders())]
    first = since if former is not None else max(since, 1)  # a run's initial model is nobody's
    models = [path for each in kept for at, path in each.items() if at >= first]
    before = max((at for at in record.checkpoints() if at < since), default=None)
    heirs = list(_heirs(run, number, places))
    exports = [Path(row["folder"]) for row in record.exports.rows() if row["round"] >= first]
    for heir in heirs:
        exports += [Path(row["folder"]) for row in Run.open(heir.folder).exports.rows()]
    known = list(dict.fromkeys(exports))
    return Withdrawal(run, number, since, learned, models, heirs, before, former, known)


def settings_without(found: Withdrawal, start_from: Path | None) -> dict[str, Any]:
    """Returns the settings of a run as it would have been without the client.

    It repeats the record's participation without the client; if the run itself repeated another's,
    or lacked others, it does so, too. It starts from ``start_from`` in place of a former run that
    has the client's updates.

    Raises:
        Refused: There is a former run with the client's updates, and none to start from in its
            place, or that has them, too; or there is none.
    """
    settings: dict[str, Any] = Run.open(found.run).settings
    gone = {int(each) for each in settings.get("without", "").split(",") if each}
    settings |= {"without": ",".join(map(str, sorted(gone | {found.client})))}
    settings["participation"] = settings.get("participation") or str(found.run.absolute())
    if start_from is None and found.former is None:
        return settings
    if found.former is None:
        raise Refused(f"--from is for a run that started from another with the client's updates: "
                      f"{found.run} did not")  # fmt: skip
    if start_from is None:
        raise Refused(
            f"{found.run} started from {found.former}, which has updates of client {found.client}: "
            "withdraw it there first, and name the run that comes of it by --from RUN"
        )
    other = Run.open(start_from)
    if _came(other, found.client) is not None or _tainted(other, found.client) is not None:
        wanted = f"a run without updates of client {found.client}"
        raise Refused(must("--from", str(start_from), wanted))
    return settings | {"start-from": str(start_from.absolute())}


def begin(found: Withdrawal, folder: Path, experiment: Experiment, *, engine: str) -> Experiment:
    """Begins a new run from the checkpoint before a withdrawal, if there is one.

    Returns:
        The experiment to run in the folder: what is left of it.

    Raises:
        Refused: The folder is used, or the checkpoint is damaged.
    """
    if found.base is None:
        return experiment
    new = RunWriter.create(folder, experiment, engine=engine, training=secrets.token_hex(8))
    new.begin_as(Run.open(found.run), found.base)
    return experiment.model_copy(update={"resume": str(folder)})


@contextmanager
def noted(found: Withdrawal, folder: Path) -> Iterator[None]:
    """Has a run begun in the block note the withdrawal: ``withdrawal.json`` in its folder."""
    try:
        yield
    finally:
        if is_run(folder):
            text = json.dumps(summed(found.to_json()), indent=2)
            replace_file(folder / _NOTE, text.encode())


def _number(record: Run, client: str) -> int:
    named = [number for number, name in record.names.items() if name == client]
    digits = re.fullmatch(r"(?:client-)?(\d{1,6})", client, re.ASCII)
    number = named[0] if named else int(digits[1]) if digits else record.clients
    if number >= record.clients:
        wanted = f"the name or number of one of its {record.clients} clients"
        raise Refused(must("CLIENT", client, wanted))
    return number


def _came(record: Run, client: int) -> int | None:
    """First round of a client's membership; None if it never was a member."""
    everyone = range(int(record.settings["num-clients"]))
    rounds = (row["round"] for row in record.rows() if client in row.get("members", everyone))
    return next(rounds, None)


def _tainted(record: Run, client: int) -> Path | None:
    """Returns the run that another started from, if it has a client's updates."""
    named = record.settings.get("start-from")
    if not named:
        return None
    former = Run.open(Path(named))
    had = _came(former, client) is not None or _tainted(former, client) is not None
    return former.folder if had else None


def _heirs(run: Path, client: int, places: Iterable[Path]) -> Iterator[Heir]:
    linked: dict[Path, list[tuple[str, Path]]] = {}
    folders = {p.parent.resolve(): p.parent for place in places for p in _configs(place)}
    for folder in folders.values():
        with suppress(EngramError, OSError):  # what cannot be read says so elsewhere
            record = Run.open(folder)
            settings = record.settings
            if _came(record, client) is not None or _tainted(record, client) is not None:
                for key, link in _LINKS.items():
                    if settings.get(key):
                        of = Path(settings[key]).resolve()
                        linked.setdefault(of, []).append((link, folder))
    seen, front = {run.resolve()}, [run]
    for of in front:
        for link, folder in linked.get(of.resolve(), ()):
            if folder.resolve() not in seen:
                seen.add(folder.resolve())
                front.append(folder)
                yield Heir(folder, link, of)


def _configs(place: Path) -> list[Path]:
    return [*sorted(place.glob("*/config.json")), *sorted(place.glob("*/*/config.json"))]
