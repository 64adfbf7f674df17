"""Times rounds of the bare link on this machine, with TLS; nodes add one to each number.

``python -m benchmarks.link --clients 3 20 100 300`` is of a small model (31,000 parameters,
121 KiB), with all nodes in one process. ``--clients 4 --mebibytes 490 --apart --rounds 4`` is of a
large one, with a process for each node; ``--cut`` has the first node's connection cut for ten
seconds in the second round, once as many bytes have passed as half a model has.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import psutil

from engram.link.questions import Content, Question
from engram.link.run import Link
from tests.link.wire.answers import plus_one
from tests.link.wire.cuts import Proxy
from tests.link.wire.processes import Processes, new_federation, until

_ALL = 600.0  # seconds that a round may take


def own_memory(process: psutil.Process) -> float:
    """Returns a process's own memory, in MiB, without files that the kernel may drop."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024
    except OSError:
        return 0.0


def measure(processes: Processes, clients: int, size: int, given: argparse.Namespace) -> None:
    """Runs rounds, and prints their time and memory."""
    names = [f"client-{number}" for number in range(clients)]
    proxy = Proxy(processes.port) if given.cut else None
    processes.start("server")
    link = Link(processes.folder / "server", "1")
    for each in names if given.apart else [",".join(names)]:
        processes.reached_at = proxy.port if proxy and each == names[0] else processes.port
        processes.start(each)
    seen = {n: psutil.Process(p.pid) for n, p in processes.running.items()}
    seen["run"], peaks, over = psutil.Process(), defaultdict[str, float](float), threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            for name, process in seen.items():
                peaks[name] = max(peaks[name], own_memory(process))

    threading.Thread(target=watch, daemon=True).start()
    until(lambda: sum(member.there for member in link.members().values()) == clients, 300)
    took, worked, model = list[float](), [sum(seen["server"].cpu_times()[:2])], bytes(size)
    for number in range(given.rounds):
        begun, passed = time.perf_counter(), proxy.passed if proxy else 0
        if proxy and number == 1:
            threading.Thread(target=cut, args=(proxy, passed + size // 2)).start()
        model = played(link, names, f"{number}/train", model)
        took.append(time.perf_counter() - begun)
        worked.append(sum(seen["server"].cpu_times()[:2]))
        if proxy:
            print(f"  {took[-1]:.2f} s, {(proxy.passed - passed) >> 20} MiB over the first link")
    core = statistics.median(after - before for before, after in itertools.pairwise(worked[1:]))
    peak = ", ".join(f"{name[:10].strip(',')} {peaks[name]:.0f}" for name in seen)
    print(
        f"{clients} nodes, {size / 2**20:.2f} MiB: {statistics.median(took[1:]):.3f} s a round"
        f" (first {took[0]:.2f}), {core:.3f} s of a core for the server,"
        f" load {os.getloadavg()[0]:.1f}; peak MiB: {peak}",
        flush=True,
    )
    over.set()
    link.close(over=True)
    if proxy:
        proxy.close()


def played(link: Link, names: list[str], request: str, model: bytes) -> bytes:
    """Plays a round; returns the model that all nodes must have answered."""
    asked = Content([model])
    link.ask((Question(n, request, "train", {}, [asked], 2**40) for n in names), seconds=_ALL)
    expected, came = plus_one(model), 0
    for reply in link.replies(seconds=_ALL):
        assert not reply.error, reply
        assert reply.content == expected
        came += 1
        del reply
    assert came == len(names), came
    return expected


def cut(proxy: Proxy, at: int) -> None:
    """Cuts a connection once so many bytes have passed."""
    until(lambda: proxy.passed >= at, 300)
    proxy.cut(10.0)
    print("  cut for 10 s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.link", description=__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[3, 20])
    parser.add_argument("--mebibytes", type=float, default=31_000 * 4 / 2**20)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--apart", action="store_true", help="a process for each node")
    parser.add_argument("--cut", action="store_true", help="cut the first node's connection")
    given = parser.parse_args(arguments)
    for clients in given.clients:
        with tempfile.TemporaryDirectory(prefix="link-") as folder:
            new_federation(Path(folder) / "fed", clients)
            processes = Processes(Path(folder) / "fed")
            try:
                measure(processes, clients, int(given.mebibytes * 2**20), given)
            finally:
                processes.close()


if __name__ == "__main__":
    main()
