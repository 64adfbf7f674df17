"""Runs each case in a forked process of its own, within limits, and judges how it ended."""

import faulthandler
import gc
import hashlib
import importlib
import json
import multiprocessing
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

import engram
from engram.cli.__main__ import main
from engram.settings.errors import EngramError

Case = Callable[[random.Random, Path], Sequence[str] | None]
"""Fills an empty folder, and returns the words of a command to run there; or calls functions of
its own, which may raise errors that are meant for users."""

VERDICTS: Final = ("accepted", "refused", "unclear", "half-written", "traceback", "hang")
_MEMORY: Final = 4 * 2**30  # bytes that a case may take
_LONGEST: Final = 2100  # characters of a refusal
_WAITED: Final = 0.3  # share of a case's time after which what may go on for long gets Ctrl-C
_GOES_ON: Final = frozenset(
    {"run", "compare", "tune", "reproduce", "board", "federation", "node", "superlink"}
)
_ENDS: Final = (130, -signal.SIGINT)  # statuses after Ctrl-C
_ASIDE: Final = frozenset({"lock", "flwr", "empty"})  # who looks must have it; Flower's home
_LEFT: Final = ("torchinductor_", ".ses")  # what torch and onnxruntime leave among temporary files
_SLOW: Final = ("datasets", "matplotlib.backends.backend_agg", "onnxruntime", "torch._dynamo")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_RAW: Final = ("Traceback (most recent call last)", "Exception ignored in", "Fatal Python error")


class Finding(NamedTuple):
    """A case that did not end as it should."""

    entry: str  # the entry point
    number: int  # the case's number there
    verdict: str
    told: str  # the error, and where it was raised
    words: str  # the command


class Ended(NamedTuple):
    """The end of a case's process."""

    status: int | None  # None: it was killed
    interrupted: bool  # by Ctrl-C, since it went on
    out: str
    err: str
    hang: str  # its stack when its time was over; empty if it ended before
    words: list[str]
    changed: list[str]  # names in its folder that are new, gone or others, since the command began
    left: list[str]  # names in its folder of temporary files


def load_rooms() -> None:
    """Imports all our modules, so that forked processes need not."""
    for found in pkgutil.walk_packages(engram.__path__, "engram."):
        importlib.import_module(found.name)
    for name in _SLOW:
        importlib.import_module(name)
    gc.freeze()


def fuzz(
    entries: Mapping[str, Case],
    cases: Mapping[str, range],
    *,
    seed: int,
    seconds: float,
    tell: Callable[[str, Finding | None], None] = lambda entry, finding: None,
) -> dict[str, Counter[str]]:
    """Returns the number of cases of each entry point by verdict, and calls ``tell`` for each.

    A case depends only on ``seed``, its entry's name and its number, and may take ``seconds``. One
    that took longer is tried once more with three times as many: the machine may have been busy.
    """
    counts = {entry: Counter(dict.fromkeys(VERDICTS, 0)) for entry in cases}
    for entry, number in _in_turn(cases):
        name = f"{seed}/{entry}/{number}"
        for most in (seconds, 3 * seconds):
            ended = _ended(entries[entry], random.Random(name), most)
            verdict, told = judge(ended)
            if verdict != "hang":
                break
        counts[entry][verdict] += 1
        bad = verdict not in ("accepted", "refused")
        words = " ".join(map(repr, ended.words))
        tell(entry, Finding(entry, number, verdict, told, words) if bad else None)
    return counts


def _in_turn(cases: Mapping[str, range]) -> Iterator[tuple[str, int]]:
    """Yields all cases, those of all entry points mixed evenly."""
    placed = [
        ((place + 0.5) / len(numbers), entry, number)
        for entry, numbers in cases.items()
        for place, number in enumerate(numbers)
    ]
    for _, entry, number in sorted(placed):
        yield entry, number


def judge(ended: Ended) -> tuple[str, str]:
    """Returns the verdict on a case, and the reason."""
    lines = [line for line in ended.err.splitlines() if line.strip()]
    last, printed = lines[-1] if lines else "", ended.out + ended.err
    refused = ended.status in (1, 2)
    fine = refused or ended.status == 0 or (ended.interrupted and ended.status in _ENDS)
    trains = ended.status == 1 and not _GOES_ON.isdisjoint(ended.words[:1])  # a run that stopped
    if ended.hang or ended.status is None:
        return "hang", ended.hang
    if not fine or any(raw in ended.err for raw in _RAW):
        return "traceback", f"status {ended.status}\n" + "\n".join(lines[-14:])[-3000:]
    strange = _CONTROL.search(printed)
    if strange or (refused and not _clear(last) and "Usage:" not in printed):
        return "unclear", f"status {ended.status}, {strange}, and the last line is {last!r}"
    # A cache that is complete stays where memory runs out later.
    stays = "memory ran out" in last and all(name.startswith("data") for name in ended.changed)
    if ended.left or (refused and ended.changed and not trains and not stays):
        return "half-written", f"{ended.left} left, {ended.changed[:6]} changed: {last}"
    return ("refused" if refused else "accepted"), last


def _clear(line: str) -> bool:
    return line.startswith("engram: ") and line.isprintable() and len(line) <= _LONGEST


@contextmanager
def _box() -> Iterator[Path]:
    box = Path(tempfile.mkdtemp(prefix="engram-fuzz-"))
    for name in ("here", "home", "tmp"):
        (box / name).mkdir()
    try:
        yield box
    finally:
        shutil.rmtree(box, ignore_errors=True)


def _ended(case: Case, rng: random.Random, seconds: float) -> Ended:
    """Runs a case in a process of its own, and ends all that it has started."""
    with _box() as box:
        process = multiprocessing.get_context("fork").Process(
            target=_work, args=(case, rng, box, seconds)
        )
        process.start()
        process.join(_WAITED * seconds)
        words, before = _begun(box)
        interrupted = process.is_alive() and not _GOES_ON.isdisjoint(words[:1])
        if interrupted:
            _signal(process.pid, signal.SIGINT)
        process.join(seconds + 5)
        if process.is_alive():
            process.kill()
            process.join()
        _signal(process.pid, signal.SIGKILL)
        words, before = _begun(box)
        after = _tree(box / "here") if before is not None else {}
        files = (box / name for name in ("out", "err", "hang"))
        out, err, hang = (file.read_text(errors="backslashreplace") for file in files)
        return Ended(
            process.exitcode,
            interrupted,
            out,
            err,
            hang,
            words,
            sorted({name for name, _ in after.items() ^ (before or {}).items()}),
            [name for name in sorted(os.listdir(box / "tmp")) if not name.startswith(_LEFT)],
        )


def _begun(box: Path) -> tuple[list[str], dict[str, str] | None]:
    """Returns the command's words and the folder before it began, if the case has got so far."""
    try:
        words, before = json.loads((box / "begun").read_text())
    except (OSError, ValueError):
        return [], None
    return words, before


def _signal(group: int | None, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(int(group or 0), number)


def _tree(folder: Path) -> dict[str, str]:
    """Returns a description of each thing in a folder, by its path there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = path.lstat().st_mode
        regular = path.is_file() and not path.is_symlink()
        held = hashlib.sha256(path.read_bytes()).hexdigest() if regular else ""
        if _ASIDE.isdisjoint(path.parts):
            found[str(path.relative_to(folder))] = f"{kind} {held}"
    return found


def _work(case: Case, rng: random.Random, box: Path, seconds: float) -> None:
    """Prepares a case, and runs its command as a process of the shell would."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(box / name, os.O_CREAT | os.O_WRONLY), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, m) for n, m in enumerate("rww"))
    hang = (box / "hang").open("w")
    faulthandler.dump_traceback_later(seconds, exit=True, file=hang)
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    os.environ |= {"HOME": str(box / "home"), "TMPDIR": str(box / "tmp"), "COLUMNS": "200"}
    tempfile.tempdir = None
    os.chdir(box / "here")
    try:
        words = case(rng, box / "here")
        if words is not None:
            _begin(box, list(map(_passable, words)))
    except EngramError as error:
        print(f"engram: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _passable(word: str) -> str:
    """Returns a word as a shell can pass it."""
    return word.replace("\0", "").encode(errors="ignore").decode()[:100_000]


def _begin(box: Path, words: list[str]) -> None:
    (box / "begun.new").write_text(json.dumps([words, _tree(box / "here")]))
    (box / "begun.new").rename(box / "begun")
    sys.argv = ["engram", *words]
    main()
