"""Times rounds of the link on this machine, with mutual TLS; clients add one to what they receive.

``python -m link.bench --clients 3 20 100`` is of a small model (31,000 parameters, 121 KiB), with
all nodes in one process. ``python -m link.bench --clients 4 --mebibytes 490 --apart --rounds 4`` is
of a large one, with a process for each node; ``--cut`` has the first node's connection cut for ten
seconds in the second round, once as many bytes have passed as half a model has.
"""

import argparse
import itertools
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from engram.link.questions import Question
from engram.link.run import Link
from tests.link.wire.cuts import Proxy
from tests.link.wire.identity import new_federation
from tests.link.wire.processes import Federation, free_port, until


def memory(process: psutil.Process) -> float:
    """Returns a process's own memory, in MiB: without files, which the kernel may drop."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024
    except OSError:
        return 0.0


def measure(folder: Path, clients: int, mebibytes: float, rounds: int, given: Any) -> None:
    """Runs rounds in a new folder, and prints what they took."""
    names = [f"client-{number}" for number in range(clients)]
    new_federation(folder, ["127.0.0.1"], clients)
    federation, peaks, over = (
        Federation(folder, free_port()),
        defaultdict[str, float](float),
        threading.Event(),
    )
    proxy = Proxy(federation.port) if given.cut else None
    try:
        federation.start("server")
        link = Link(folder / "server", "bench")
        for each in names if given.apart else [",".join(names)]:
            federation.reached_at = proxy.port if proxy and each == names[0] else federation.port
            federation.start(each)
        seen = {n: psutil.Process(p.pid) for n, p in federation.running.items()} | {
            "run": psutil.Process()
        }
        before = {name: memory(process) for name, process in seen.items()}

        def watch() -> None:
            while not over.wait(0.1):
                for name, process in seen.items():
                    peaks[name] = max(peaks[name], memory(process))

        threading.Thread(target=watch, daemon=True).start()
        until(lambda: sum(m.there for m in link.members().values()) == clients, 300)
        size = int(mebibytes * 2**20)
        model = {f"layer-{i}": np.zeros(size // 32, np.float32) for i in range(8)}
        took, worked = [], [sum(seen["server"].cpu_times()[:2])]
        for number in range(rounds):
            begun, passed = time.perf_counter(), proxy.passed if proxy else 0
            if proxy and number == 1:
                threading.Thread(target=_cut, args=(proxy, passed + size // 2)).start()
            link.ask(
                (Question(n, f"{number}/train", "train", {}, model, 2 * size) for n in names),
                seconds=600,
            )
            total, counted = {name: np.zeros_like(x) for name, x in model.items()}, 0
            for reply in link.replies(seconds=600):
                counted += not reply.error
                for name, x in reply.tensors.items():
                    total[name] += x
                del reply
            assert counted == clients, counted
            model = {name: np.divide(x, clients, out=x) for name, x in total.items()}
            assert all(float(x[0]) == float(x[-1]) == number + 1 for x in model.values())
            took.append(time.perf_counter() - begun)
            worked.append(sum(seen["server"].cpu_times()[:2]))
            if given.apart:
                link_s = (
                    f", {(proxy.passed - passed) / 2**20:.1f} MiB over the first link"
                    if proxy
                    else ""
                )
                print(f"  round {number}: {took[-1]:.2f} s{link_s}", flush=True)
        cpu = statistics.median(b - a for a, b in itertools.pairwise(worked[1:]))
        print(
            f"{clients} clients, {mebibytes:g} MiB: {statistics.median(took[1:]):.3f} s a round "
            f"(first {took[0]:.2f}), {cpu:.3f} s of a core for the server; peak MiB: "
            + ", ".join(
                f"{n.split(',')[0]} {peaks[n]:.0f}"
                for n in seen
                if n in ("server", "run", *list(seen)[1:2])
            ),
            flush=True,
        )
        del before
        link.close(over=True)
    finally:
        over.set()
        federation.close()
        if proxy:
            proxy.close()


def _cut(proxy: Proxy, at: int) -> None:
    until(lambda: proxy.passed >= at, 300)
    proxy.cut(10.0)
    print("  cut for 10 s", flush=True)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m link.bench", description=__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[3, 20])
    parser.add_argument("--mebibytes", type=float, default=31_000 * 4 / 2**20)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--apart", action="store_true", help="a process for each node")
    parser.add_argument("--cut", action="store_true", help="cut the first node's connection")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end the processes
    for clients in given.clients:
        with tempfile.TemporaryDirectory(prefix="link-") as folder:
            measure(Path(folder) / "fed", clients, given.mebibytes, given.rounds, given)


if __name__ == "__main__":
    main()
