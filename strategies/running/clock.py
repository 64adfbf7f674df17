"""A simulated clock: how long clients take, which answer in time, and which are still at work.

Nothing here looks at the machine's time: seconds are what the settings or a trace file say.
"""

import csv
import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from engram.core.checks import must
from engram.core.streams import Stream, generator
from engram.settings.errors import Names, Refused, few, one_line
from engram.settings.files import read_file
from engram.settings.training import DrawnClock

_COLUMNS: Final = ("client", "step-seconds", "bandwidth")


class Pace(NamedTuple):
    """The speed of a client."""

    step: float  # seconds of a local step; > 0
    bandwidth: float  # bytes a second, in both directions; > 0

    def ends(self, start: float, steps: int, size: int) -> float:
        """Returns the second of an answer to a question at ``start``: local steps, then bytes."""
        return start + steps * self.step + size / self.bandwidth


def drawn_paces(settings: DrawnClock, seed: int, clients: int) -> list[Pace]:
    """Draws the clients' paces; ``stragglers`` is rounded to a number of clients."""
    e, rng = settings, generator(seed, Stream.CLOCK)
    factors = np.exp(e.speed_spread * rng.standard_normal((2, clients)))
    factors[:, rng.permutation(clients)[: round(e.stragglers * clients)]] *= e.slowdown
    return [Pace(e.step_seconds * a, e.bandwidth / b) for a, b in factors.T.tolist()]


def traced_paces(path: Path, clients: int, names: Names) -> list[Pace]:
    """Reads the clients' paces from a CSV file.

    Its columns are ``client`` (a name, or a number where clients have none), ``step-seconds`` and
    ``bandwidth``.

    Raises:
        Refused: The file cannot be read, a line is impossible, or a client has no line.
    """
    try:
        text = read_file(path).decode("utf-8-sig")
    except OSError as error:
        raise Refused(must("clock", str(path), f"a CSV file ({error.strerror})")) from error
    except UnicodeDecodeError as error:
        raise Refused(must("clock", str(path), "a CSV file in UTF-8")) from error
    rows = csv.DictReader(io.StringIO(text, newline=""))
    header = list(rows.fieldnames or ())
    if absent := [name for name in _COLUMNS if name not in header]:
        expected = f"a CSV file with columns {', '.join(_COLUMNS)} (it lacks {', '.join(absent)})"
        raise Refused(must("clock", str(path), expected))
    numbers = {names.get(client, str(client)): client for client in range(clients)}
    found: dict[int, Pace] = {}
    for row in rows:
        where, name = f"{path}, line {rows.line_num}", (row["client"] or "").strip()
        client = numbers.get(name)
        if client is None or client in found:
            expected = "a client of the federation, once"
            raise Refused(must(f"{where}: client", name, expected))
        found[client] = _pace(row, where)
    if missing := sorted({*range(clients)} - found.keys()):
        lacks = few(missing, names)
        raise Refused(f"{path} must have a line for each of {clients} clients, lacks {lacks}")
    return [found[client] for client in range(clients)]


def _pace(row: Mapping[str, str | None], where: str) -> Pace:
    values = []
    for key in _COLUMNS[1:]:
        text = row[key] or ""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise Refused(must(f"{where}: {key}", one_line(text), "a number above 0"))
        values.append(value)
    return Pace(*values)


def in_time(
    ends: Mapping[int, float], *, now: float, wanted: int, deadline: float
) -> tuple[list[int], float]:
    """Returns the clients that a synchronous round merges, ascending, and the second of its end.

    It ends when ``wanted`` have answered, or all, or ``deadline`` seconds have passed (0: never).
    Clients are asked at ``now``, and answer at ``ends``.
    """
    last = now + deadline if deadline else math.inf
    order = sorted((end, client) for client, end in ends.items() if end <= last)[:wanted]
    whole = len(order) == min(wanted, len(ends))
    end = max((end for end, _ in order), default=now) if whole else last
    return sorted(client for _, client in order), end


class Flight(NamedTuple):
    """A client at work."""

    client: int
    version: int  # the round after which the model was that it works on
    lands: float  # the second at which its answer arrives


class Flights(NamedTuple):
    """The clients at work in a buffered run."""

    now: float = 0.0  # second
    waves: int = 0  # how many times clients have been asked
    aloft: tuple[Flight, ...] = ()

    def busy(self, version: int, landed: Sequence[Flight]) -> set[int]:
        """Returns the clients that cannot be asked: at work, or done with this very model."""
        return {f.client for f in (*self.aloft, *(f for f in landed if f.version == version))}


def landings(
    flights: Flights,
    version: int,
    *,
    at_work: int,
    wanted: int,
    draw: Callable[[int, int, Collection[int]], Sequence[int]],
    ends: Callable[[int, float], float],
) -> tuple[list[Flight], Flights]:
    """Lets time pass until a buffer is full (Nguyen et al. 2022, Alg. 1).

    Whenever a client has answered, another is asked, with the model of that moment. Answers of the
    same second are counted before anybody is asked, in the order of clients; so where all take the
    same time and ``wanted`` are ``at_work``, rounds are synchronous ones. No client works twice on
    the same model.

    ``at_work`` clients are at work at any time (M), as far as there are others to ask; ``wanted``
    updates are in a buffer (K), at most as many. ``draw`` and ``ends`` are as in ``async_rounds``.

    Returns:
        The answers in the buffer, in order of their arrival, fewer than ``wanted`` only if nobody
        is left to be asked; and the clients still at work.
    """
    landed: list[Flight] = []
    while len(landed) < wanted:
        if (free := at_work - len(flights.aloft)) > 0:
            now, wave = flights.now, flights.waves + 1
            clients = draw(wave, free, flights.busy(version, landed))
            asked = (Flight(client, version, ends(client, now)) for client in clients)
            flights = Flights(now, wave, (*flights.aloft, *asked))
        if not flights.aloft:
            break
        now = min(flight.lands for flight in flights.aloft)
        here = sorted(flight for flight in flights.aloft if flight.lands == now)
        here = here[: wanted - len(landed)]
        landed += here
        flights = flights._replace(now=now, aloft=tuple(f for f in flights.aloft if f not in here))
    return landed, flights
