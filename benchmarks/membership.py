"""A run with nodes that join, leave, are revoked and cut off by a script.

``python -m benchmarks.membership --nodes 20 --rounds 100 --seed 0`` starts a federation on this
machine, with TLS and authentication, and runs Ditto on it, whose clients keep models of their own.
While the run goes on, clients join, sites leave, the operator revokes keys, and nodes are cut off
for as long as the script says: nothing passes, and neither side is told, as when a cable is pulled.
In the end every round must be recorded, the members must be those of the script, memories must be
intact, and the model must be that of one process in which the same clients took part.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import typer

from benchmarks.chaos import distance
from benchmarks.harness import Keep, new_folder, report, start
from engram.client.disk_memory import DiskStore
from engram.link.credentials import read_node
from engram.link.node.errands import leave
from engram.link.node.refusals import Unreachable
from engram.link.server.registration import remove_client
from engram.runs.run import Run
from engram.settings.errors import EngramError, RunStopped
from engram.settings.experiment import Experiment
from engram.settings.plugins import add_plugins, load_plugins
from engram.simulations.deployed import run_deployed
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
from engram.sites.audit import AUDIT, Audit
from engram.wire.messages import TRAIN
from engram.wire.tensors import tensors_from_bytes
from tests.link.wire.cuts import Proxy

Kind = Literal["join", "leave", "revoke", "cut"]

_CUT = (5.0, 40.0)  # seconds of a cut: a connection on which nothing comes is soon ended
_SOON = 0.6  # part of the rounds in which everything is to happen
_MORE = 5  # rounds by which a run is prolonged until the script is over
_AFTER = 2  # rounds after the last event, which show what came of it
_DATA = "wards"
_WARDS = '''"""Rows of a ward: a plug-in, since nodes that come have rows of their own."""

import numpy as np

import engram


@engram.data
def wards(client):
    """Returns a ward's rows, of three classes."""
    rng, n = np.random.default_rng([5, client]), 40 + client
    y = rng.integers(0, 3, n)
    return (np.eye(3, 4)[y] + 0.5 * rng.normal(size=(n, 4))).astype(np.float32), y
'''


class Event(NamedTuple):
    """An event of the script, about one client.

    Attributes:
        server_round: The recorded round after which it happens.
        kind: The client joins, its site leaves, its key is revoked, or its node is cut off.
        client: The client.
        seconds: How long its node is cut off.
    """

    server_round: int
    kind: Kind
    client: int
    seconds: float = 0.0


class Outcome(NamedTuple):
    """Outcome of a run with changing members."""

    events: dict[Kind, int]  # number of events by kind
    rounds: int  # rounds of the run: those asked for, and more if the script took longer
    missed: int  # events of the script that did not come about
    seconds: float  # duration of the run
    stops: int  # times that the coordinator had to be started again
    rounds_lost: int  # rounds that were not recorded exactly once
    strangers: int  # clients of which the script and the last round do not both say the same
    absences: int  # of members, summed over rounds
    memories_lost: int  # members without an intact memory of the last round that they trained in
    ahead: int  # members that trained in a round whose reply came too late; they remember it
    memory_difference: float  # largest one of the other members' memories to the simulation's
    difference: float  # largest absolute difference between entries of the models

    @property
    def unharmed(self) -> bool:
        """Whether the run went on, and its models are those of its record."""
        near = self.difference <= 1e-5 and self.memory_difference <= 1e-5  # NaN is not
        failed = self.missed, self.stops, self.rounds_lost, self.strangers, self.memories_lost
        return near and not any(failed)


class CutFederation(LoopbackFederation):
    """A federation with a proxy, which can be cut, between each node and the server."""

    def __init__(self, folder: Path, *, clients: int, options: Sequence[str]) -> None:
        super().__init__(folder, clients=clients, options=options)
        self.proxies: dict[str, Proxy] = {}

    def start(self, name: str) -> None:
        """Starts one of the processes; a node that is new with a proxy."""
        if name != "superlink" and name not in self.proxies:
            proxy = self.proxies[name] = Proxy(self.fleet)
            own = self._folder / name / "node.toml"
            own.write_text(own.read_text().replace(f":{self.fleet}", f":{proxy.port}"))
        super().start(name)

    def stop(self) -> None:
        """Ends all processes and proxies."""
        super().stop()
        for proxy in self.proxies.values():
            proxy.close()


def begins_with(nodes: int) -> int:
    """Number of clients at the start; the others join."""
    return nodes - max(1, nodes // 4)


def plan(nodes: int, rounds: int, seed: int) -> list[Event]:
    """Draws the events of ``nodes`` clients, at least 4, in order of time.

    A quarter join, an eighth leave, an eighth are revoked, and a quarter are cut off.
    """
    rng, first = np.random.default_rng(seed), begins_with(nodes)
    few, some = max(1, nodes // 8), max(1, nodes // 4)
    counts: dict[Kind, int] = {"join": nodes - first, "leave": few, "revoke": few, "cut": some}
    kinds = rng.permutation([kind for kind, count in counts.items() for _ in range(count)])
    times = np.sort(rng.integers(1, max(2, int(_SOON * rounds)), len(kinds)))
    members, events = list(range(first)), list[Event]()
    for at, kind in zip(times.tolist(), kinds.tolist(), strict=True):
        seconds = float(rng.uniform(*_CUT)) if kind == "cut" else 0.0
        client = first + sum(e.kind == "join" for e in events)
        if kind == "join":
            members.append(client)
        else:
            client = int(rng.choice(members))
            if kind != "cut":
                members.remove(client)
        events.append(Event(at, kind, client, seconds))
    return events


def members_after(nodes: int, events: Sequence[Event]) -> set[int]:
    """Members in the end."""
    joined = {event.client for event in events if event.kind == "join"}
    gone = {event.client for event in events if event.kind in ("leave", "revoke")}
    return ({*range(begins_with(nodes))} | joined) - gone


def settings(clients: int, rounds: int) -> dict[str, Any]:
    """Settings of quick rounds of all members."""
    return {
        "method": "ditto",
        "dataset": _DATA,
        "partition": "natural",
        "num-clients": clients,
        "clients-per-round": clients,
        "min-clients": 2,
        "num-rounds": rounds,
        "eval-every": 10,
        "checkpoint-every": 5,
        "local-steps": 20,
        "hidden": "8",
        "timeout": 120.0,
    }


def carry_out(
    folder: Path,
    nodes: int,
    rounds: int,
    events: Sequence[Event],
    *,
    say: Any = print,
) -> Outcome:
    """Runs the federation in a new folder, has everything happen, and compares.

    The run has ``rounds`` rounds, and goes on for more until the script is over.
    """
    (folder / f"{_DATA}_plugin.py").write_text(_WARDS, encoding="utf-8")
    add_plugins(str(folder / f"{_DATA}_plugin"))
    load_plugins()
    first, data, run = begins_with(nodes), ["--data", _DATA], folder / "run"
    reached, stops, over, awaited = [-1], list[str](), threading.Event(), set[int]()
    done, start = dict[Event, int](), time.monotonic()

    def on_round(row: Mapping[str, Any]) -> None:
        reached[0] = max(reached[0], row["round"])
        awaited.difference_update(row.get("cohort", ()))

    with CutFederation(folder / "federation", clients=first, options=data) as federation:

        def script() -> None:
            for event in events:
                while reached[0] < event.server_round or awaited:  # who joins is there first
                    if over.wait(0.05):
                        return
                say(f"round {reached[0]}: {event.kind} {event.client}")
                awaited.update({event.client} if event.kind == "join" else ())
                if _happen(event, federation, folder / "federation", data, over, say):
                    done[event] = reached[0]

        happening = threading.Thread(target=script, daemon=True)
        happening.start()
        try:
            while reached[0] < rounds:
                run_deployed(
                    Experiment.from_config(settings(first, rounds)), run, federation.server,
                    on_round=on_round, on_trouble=stops.append,
                )  # fmt: skip
                if happening.is_alive() or max(done.values(), default=0) > rounds - _AFTER:
                    rounds += _MORE
        finally:
            over.set()
            happening.join()
    seconds = time.monotonic() - start
    for line in stops:
        say(line)
    found = compare(folder, nodes, rounds, members_after(nodes, events))
    counts, missed = dict(Counter(event.kind for event in done)), len(events) - len(done)
    return Outcome(counts, rounds, missed, seconds, len(stops), **found)


def _happen(
    event: Event,
    federation: CutFederation,
    folder: Path,
    data: Sequence[str],
    over: threading.Event,
    say: Any,
) -> bool:
    """Has an event happen; returns whether it did before the run was over."""
    name = f"client-{event.client}"
    if event.kind == "join":
        federation.add(data)
    elif event.kind == "leave":
        node = folder / name
        return _insist(lambda: leave(read_node(node)), over, say)
    elif event.kind == "revoke":
        server = federation.server
        return _insist(lambda: remove_client(server, name), over, say)
    else:
        federation.proxies[name].cut(event.seconds, reset=False)
    return True


def _insist(step: Callable[[], object], over: threading.Event, say: Any) -> bool:
    """Repeats a step that a busy machine may have been too slow for, as an operator would."""
    while not over.is_set():
        try:
            step()
        except (RunStopped, Unreachable) as error:
            say(f"once more: {error}")
        else:
            return True
    return False


def compare(folder: Path, nodes: int, rounds: int, members: set[int]) -> dict[str, Any]:
    """Compares a run with its record, and with one process in which the same clients took part.

    Returns:
        The fields of ``Outcome`` from ``rounds_lost`` on.

    Raises:
        EngramError: The run ended without a checkpoint.
    """
    record = Run.open(folder / "run")
    rows, training = record.rows(), record.config["training"]
    again = settings(nodes, rounds) | {"participation": str(folder / "run")}
    simulate(Experiment.from_config(again), folder / "here")
    wanted, found = Run.open(folder / "here").load_checkpoint(), record.load_checkpoint()
    if wanted is None or found is None:
        raise EngramError("a run ended without a checkpoint")
    theirs = tensors_from_bytes(wanted.memories or b"")
    lost, ahead, apart = 0, 0, 0.0
    for client in sorted(members):
        own = folder / "federation" / f"client-{client}" / "state"
        trained, merged = {*_trained(own, training)}, _merged(rows, client)
        newest = max(trained | merged, default=0)
        prefix = f"{client}/{newest}/"
        right = {k.removeprefix(prefix): x for k, x in theirs.items() if k.startswith(prefix)}
        try:
            memory = DiskStore(own / "memory" / training).read(client, newest)
        except (EngramError, OSError):
            lost += newest > 0
        else:
            ahead += trained != merged
            apart = max(apart, distance(memory, right) if trained == merged else 0.0)
    recorded = Counter(row["round"] for row in rows)
    return {
        "rounds_lost": sum(recorded[number] != 1 for number in range(rounds + 1)),
        "strangers": len(members ^ {*rows[-1]["members"]}),
        "absences": sum(len(row.get("absent", ())) for row in rows),
        "memories_lost": lost,
        "ahead": ahead,
        "memory_difference": apart,
        "difference": distance(found.model, wanted.model),
    }


def _trained(state: Path, training: str) -> Iterator[int]:
    """Yields the rounds that a node has trained in, by its log."""
    for line in Audit(state / AUDIT).read().lines:
        if line["kind"] == TRAIN and line["training"] == training and "round" in line:
            yield line["round"]


def _merged(rows: Sequence[Mapping[str, Any]], client: int) -> set[int]:
    """Rounds in which a client was merged."""
    asked = (row for row in rows if client in row.get("cohort", ()))
    return {row["round"] for row in asked if str(client) not in row["absent"]}


def main(
    nodes: Annotated[int, typer.Option(min=4)] = 20,
    rounds: Annotated[int, typer.Option(min=4)] = 100,
    seed: int = 0,
    keep: Keep = False,
) -> None:
    """Prints the outcome of a run whose members change; exits with 1 if the run was harmed."""
    with new_folder("membership", keep=keep) as folder:
        found = carry_out(folder, nodes, rounds, plan(nodes, rounds, seed))
    report(f"{nodes} nodes, seed {seed}", found)


if __name__ == "__main__":
    start(main)
