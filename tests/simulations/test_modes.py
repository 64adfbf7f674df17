"""A call gives the same under any mode of its caller, who finds each mode as it was."""

import logging
import os
import random
import signal
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch

from tests.samples import sampled
from tests.simulations.doors import DOORS

pytestmark = pytest.mark.usefixtures("drawn", "plug_ins")


@contextmanager
def put(read, write, value):
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


@contextmanager
def raising():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextmanager
def surroundings():
    """All that engram neither reads nor sets: generators, logs, signals, what is shown and how."""
    root, handler = logging.getLogger(), logging.NullHandler()
    with ExitStack() as stack:
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        stack.callback(root.removeHandler, handler)
        root.addHandler(handler)
        stack.enter_context(put(lambda: root.level, root.setLevel, logging.DEBUG))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: None))
        stack.enter_context(np.printoptions(precision=1, threshold=2, suppress=True))
        stack.enter_context(put(mpl.get_backend, mpl.use, "pdf"))
        yield


def denormals(flushed):
    torch.set_flush_denormal(flushed)


def flushes():
    return not torch.full((), 2e-38, dtype=torch.float32).mul(0.1)


def anomalies(found):
    torch.autograd.set_detect_anomaly(found)


@contextmanager
def by_the_book():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


MODES = {
    "threads": lambda: put(torch.get_num_threads, torch.set_num_threads, 3),
    "double": lambda: put(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "device": lambda: torch.device("meta"),
    "default device": lambda: put(lambda: None, torch.set_default_device, "meta"),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": by_the_book,
    "precision": lambda: put(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "denormal": lambda: put(flushes, denormals, True),
    "anomaly": lambda: put(torch.is_anomaly_enabled, anomalies, True),
    "numpy": lambda: np.errstate(all="raise"),
    "warnings": raising,
    "surroundings": surroundings,
}


def state():
    """Returns every mode of the process, and its random generators."""
    flags = torch.backends
    return {
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "kernels": [
            (flags.cudnn.enabled, flags.cudnn.benchmark, flags.cudnn.deterministic),
            (flags.mkldnn.enabled, flags.mkldnn.matmul.fp32_precision),
        ],
        "denormal": flushes() if torch.get_default_device().type == "cpu" else None,
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "torch": torch.default_generator.get_state().tolist(),
        "numpy": [part.tolist() for part in map(np.asarray, np.random.get_state()[1:])],
        "random": random.getstate(),
        "errors": np.geterr(),
        "printing": np.get_printoptions(),
        "warnings": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "signals": [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
        "backend": mpl.get_backend(),
        "style": dict(mpl.rcParams),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, sys.stdout, sys.stderr),
        "path": list(sys.path),
    }


def equal(one, other):
    """Compares what two calls of a door gave: all numbers, up to rounding."""
    assert one.keys() == other.keys()
    for name, found in one.items():
        if isinstance(found, pd.Series | pd.DataFrame):
            frames = [pd.DataFrame(x) for x in (found, other[name])]
            # A clock decides which way clients are trained.
            frames = [x.drop(columns="ways", errors="ignore") for x in frames]
            pd.testing.assert_frame_equal(*frames, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_allclose(found, other[name], rtol=1e-4, atol=1e-5, err_msg=name)


def act(name, seed, folder):
    folder.mkdir()
    return DOORS[name](seed, folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What each door gives a caller that has set nothing."""
    place = tmp_path_factory.mktemp("plain")
    return {name: act(name, 1, place / str(at)) for at, name in enumerate(DOORS)}


# Of modes that all threads share, the test of calls at once sets most.
@pytest.mark.parametrize("mode", sampled(MODES, ("device",)))
def test_a_call_gives_the_same_under_a_mode(mode, plain, tmp_path):
    wrong = []
    for at, name in enumerate(DOORS):
        with MODES[mode]():
            before = state()
            try:
                found = act(name, 1, tmp_path / str(at))
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__}: {error}")
                continue
            after = state()
        if changed := [key for key in before if repr(before[key]) != repr(after[key])]:
            wrong.append(f"{name}: left {changed}")
        try:
            equal(found, plain[name])
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


def test_calls_at_once_give_what_they_give_in_turn(plain, tmp_path):
    """Eight at a time, of every door, whose callers have set what all threads share."""
    several = {("simulate", 2), ("augment", 2), *(("names", seed) for seed in range(2, 5))}
    alone = {key: act(*key, tmp_path / "-".join(map(str, key))) for key in sorted(several)}
    alone |= {(name, 1): found for name, found in plain.items()}
    with ExitStack() as stack:
        for mode in ("threads", "double", "warnings", "precision", "anomaly", "surroundings"):
            stack.enter_context(MODES[mode]())
        before = state()
        with ThreadPoolExecutor(8) as pool:
            jobs = {key: pool.submit(act, *key, tmp_path / str(at)) for at, key in enumerate(alone)}
        after = state()
    assert [key for key in before if repr(before[key]) != repr(after[key])] == []
    for key, job in jobs.items():
        equal(job.result(), alone[key])
