"""Runs cases in a separate process with limits of time and memory, and classifies the outcomes."""

import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

import click
import psutil

from federation.errors import EngramError, one_line

Case = Callable[[random.Random, Path], None]
"""Uses corrupted input in an empty folder; may raise errors that are meant for users."""

_MEMORY: Final = 4 * 2**30  # bytes that a case may take
_LONGEST: Final = 2100  # characters of a refusal
_VERDICTS: Final = ("accepted", "refused", "unclear", "traceback", "hang")


class Finding(NamedTuple):
    """A case that did not end as it should."""

    entry: str  # the entry point
    number: int  # the case's number there
    verdict: str  # ``unclear`` (a refusal that is not a short line), ``traceback`` or ``hang``
    told: str  # the error, and where it was raised


class Outcomes(NamedTuple):
    """The outcomes of all cases."""

    counts: dict[str, Counter[str]]  # by entry point, the number of cases by verdict
    findings: list[Finding]  # those that did not end as they should


class _Hang(BaseException):
    """A case takes too long."""


def judge(case: Case, rng: random.Random, folder: Path) -> tuple[str, str]:
    """Runs a case, and returns its verdict and the error."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        case(rng, folder)
    except click.ClickException as error:  # `engram` prints it as a line
        return "refused", one_line(error.format_message())
    except EngramError as error:
        text = str(error)
        clear = text.isprintable() and 0 < len(text) <= _LONGEST
        return ("refused" if clear else "unclear"), text[:_LONGEST]
    except _Hang as error:
        return "hang", _where(error)
    except Exception as error:  # an unexpected error, which the fuzzer looks for
        return "traceback", _where(error)
    finally:
        os.chdir(here)
    return "accepted", ""


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename]
    lines = [
        f"  {frame.filename}:{frame.lineno} {frame.name}: {frame.line}"
        for frame in (*ours[-4:], *frames[-1:])
    ]
    return "\n".join([f"{type(error).__name__}: {str(error)[:300]}", *lines])


def fuzz(
    entries: Mapping[str, Case],
    cases: Mapping[str, range],
    *,
    seed: int,
    seconds: float,
    tell: Callable[[int], None] = lambda done: None,
) -> Outcomes:
    """Runs cases of every entry point, one after the other, in a child process.

    A case depends only on ``seed``, its entry's name and its number, and may take ``seconds``.
    ``tell`` is called with how many cases are done.
    """
    left = [(entry, number) for entry, numbers in cases.items() for number in numbers]
    counts = {entry: Counter(dict.fromkeys(_VERDICTS, 0)) for entry in cases}
    findings: list[Finding] = []
    done = 0
    while done < len(left):
        with _worker(entries, left[done:], seed, seconds) as (process, answers):
            while done < len(left):
                entry, number = left[done]
                try:
                    if not answers.poll(3 * seconds + 20):
                        raise TimeoutError("it cannot be interrupted")
                    verdict, told = answers.recv()
                except TimeoutError as error:
                    verdict, told = "hang", str(error)
                except EOFError:
                    process.join()
                    verdict, told = "traceback", f"the process ended with {process.exitcode}"
                counts[entry][verdict] += 1
                if verdict not in ("accepted", "refused"):
                    findings.append(Finding(entry, number, verdict, told))
                done += 1
                tell(done)
                if told.startswith(("it cannot be", "the process ended")):
                    break
    return Outcomes(counts, findings)


@contextlib.contextmanager
def _worker(
    entries: Mapping[str, Case], left: list[tuple[str, int]], seed: int, seconds: float
) -> Iterator[tuple[multiprocessing.process.BaseProcess, Connection]]:
    forking = multiprocessing.get_context("fork")  # imports are slow, and inherited
    answers, ours = forking.Pipe(duplex=False)
    process = forking.Process(target=_work, args=(entries, left, seed, seconds, ours))
    process.start()
    ours.close()
    try:
        yield process, answers
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def _work(
    entries: Mapping[str, Case],
    left: list[tuple[str, int]],
    seed: int,
    seconds: float,
    answers: Connection,
) -> None:
    def hang(*_: object) -> None:
        raise _Hang

    signal.signal(signal.SIGALRM, hang)
    with Path(os.devnull).open("r+b") as null:
        for standard in (0, 1, 2):
            os.dup2(null.fileno(), standard)
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    for entry, number in left:
        folder = Path(tempfile.mkdtemp(prefix="engram-fuzz-"))
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            verdict = judge(entries[entry], random.Random(f"{seed}/{entry}/{number}"), folder)
        except _Hang:  # after the case had ended
            verdict = ("accepted", "")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            shutil.rmtree(folder, ignore_errors=True)
        answers.send(verdict)
