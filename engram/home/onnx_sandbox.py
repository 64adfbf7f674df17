"""ONNX files, which may be anybody's, run in a process with a deadline and a limit of memory.

A graph may loop for ever, take any amount of memory, or name files to read its numbers from. So
the process is killed at its deadline, by the system's own alarm; a graph with numbers in other
files is refused; and nothing but arrays comes back. The process imports no torch, and starts in a
fraction of a second.
"""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from psutil import Process
from safetensors.numpy import load, save

from engram.core.machine import available
from engram.settings.errors import Refused, one_line
from engram.settings.process_starts import SAFE

Arrays = dict[str, npt.NDArray[Any]]
Runs = Callable[[Arrays], npt.NDArray[Any]]  # ``inputs by name -> outputs``: what runs a graph

_QUIET: Final = {"ORT_DISABLE_TELEMETRY": "1"}  # else onnxruntime reports to its makers
_DONE: Final = b"+"
_FAILED: Final = b"-"


class Limits(NamedTuple):
    """Limits of a graph's process."""

    seconds: float = 60.0  # the time for it to be loaded, and then for each block of rows
    # The memory for its numbers, those of the rows, and all between; and no more than is free.
    gibibytes: float = 4.0

    @property
    def bytes(self) -> int:
        """The memory that is to be given."""
        return int(min(available("cpu"), self.gibibytes * 2**30))


USUAL: Final = Limits()


@contextmanager
def run_apart(data: bytes, limits: Limits) -> Iterator[Runs]:
    """Runs an ONNX file in a process of its own, which ends with the context.

    Raises:
        Refused: If it is no such file, has numbers in others, or exceeds a limit; also by calls.
    """
    pipe, other = multiprocessing.Pipe()
    words = (str(other.fileno()), str(limits.seconds), str(limits.bytes))
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, *words],
            env=os.environ | SAFE | _QUIET,
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise Refused(f"no process can be started for it: {error.strerror}") from error
    finally:
        other.close()
    ask = partial(_asked, pipe, process, limits)
    try:
        ask(data)
        yield lambda inputs: load(ask(save(inputs)))[""]
    finally:
        process.kill()
        process.wait()
        pipe.close()


def _asked(
    pipe: Connection, process: subprocess.Popen[bytes], limits: Limits, question: bytes
) -> bytes:
    try:
        pipe.send_bytes(question)
        answer = pipe.recv_bytes()
    except (EOFError, OSError) as error:
        raise Refused(_why(-process.wait(), limits)) from error
    if answer[:1] == _FAILED:
        raise Refused(one_line(answer[1:].decode(errors="replace")))
    return answer[1:]


def _why(number: int, limits: Limits) -> str:
    """Returns the words for a process that ended by a signal, or by a status if negative."""
    if number == signal.SIGALRM:
        return f"it was still at work after {limits.seconds:g} s: give a longer --deadline"
    how = signal.Signals(number).name if number > 0 else f"status {-number}"
    room = f"{limits.gibibytes:g} GiB of memory"
    return f"its process ended with {how}: if it needs more than {room}, give a larger --memory"


def session(data: bytes) -> Runs:
    """Loads an ONNX file, in this process; returns the function that runs it.

    Raises:
        Refused: If it is none, or has numbers in other files.
    """
    os.environ.update(_QUIET)
    import onnx  # noqa: PLC0415 - an extra
    import onnxruntime  # noqa: PLC0415 - an extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # Otherwise, it guesses by some bytes, and could take another format than is checked here.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        external = _reads_files(onnx.load_model_from_string(data))
        if not external:
            found = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of any kind: they are the runtime's own
        raise Refused(f"the file holds no ONNX model: {one_line(str(error))}") from error
    if external:
        raise Refused("an ONNX file must hold all its numbers, got one that reads other files")

    def run(inputs: Arrays) -> npt.NDArray[Any]:
        outputs = found.run(None, inputs)[0]
        if not isinstance(outputs, np.ndarray) or outputs.dtype.kind not in "fiub":
            raise TypeError("its outputs must be an array of numbers")
        return outputs

    return run


def _reads_files(message: Any) -> bool:
    """Returns whether any tensor in a message of ONNX, however deep, has its numbers elsewhere."""
    for field, value in message.ListFields():
        if field.name == "external_data" or (field.name == "data_location" and value):
            return True
        if field.message_type is not None:
            parts = [value] if hasattr(value, "ListFields") else value
            if any(_reads_files(part) for part in parts):
                return True
    return False


def _serve(pipe: Connection, seconds: float, most: int) -> None:
    """Answers, in the process of its own: the first question is the file, then come inputs."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the process ends, whatever it is in
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    import onnx  # noqa: F401, PLC0415 - before the limit, which is for what the file takes
    import onnxruntime  # noqa: F401, PLC0415 - before the limit

    limit = Process().memory_info().vms + most
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    runs: Runs | None = None
    while True:
        try:
            question = pipe.recv_bytes()
            signal.setitimer(signal.ITIMER_REAL, seconds)
            if runs is None:
                runs, answer = session(question), b""
            else:
                answer = save({"": np.ascontiguousarray(runs(load(question)))})
            answer = _DONE + answer
        except EOFError:
            return
        except Exception as error:  # whatever a file of anybody's raises
            answer = _FAILED + (str(error) or type(error).__name__).encode()
        pipe.send_bytes(answer)
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    handle, patience, memory = sys.argv[1:]
    _serve(Connection(int(handle)), float(patience), int(memory))
