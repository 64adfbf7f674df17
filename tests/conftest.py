"""Deterministic tests: no deadlines, the same examples every time, one thread."""

import gc
import logging
import os

import pytest
import torch
from hypothesis import settings
from threadpoolctl import threadpool_limits

pytest_plugins = ["tests.fixtures"]
# All else is imported where it is used: to collect tests needs neither Flower nor matplotlib.
threadpool_limits(1)
settings.register_profile("engram", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("engram")
torch.set_num_threads(1)
logging.getLogger("flwr").setLevel(logging.WARNING)


# The files that take longest, so that no process is alone with one in the end.
LONG = (
    *("simulations/test_ray.py", "flower/test_processes.py", "processes/test_stock_flower.py"),
    *("processes/test_federation.py", "brought/test_elsewhere.py", "processes/test_members.py"),
    *("processes/test_operation.py", "processes/test_policy.py", "processes/test_nodes.py"),
    *("processes/test_schema.py", "benchmarks/test_membership.py", "data/test_large_data.py"),
    *("golden/test_every_method.py", "replies/test_contract.py", "golden/test_golden.py"),
    *("meta/studies/test_sinewave.py", "running/test_protection.py"),
)


def pytest_addoption(parser):
    """Lets whoever rebuilds compare the golden numbers to the last bit."""
    parser.addoption("--exact", action="store_true", help="golden numbers must agree to the bit")


def pytest_collection_modifyitems(items):
    """Begins with the files that take long."""
    names = [item.path.as_posix() for item in items]
    first = {name: i for i, end in enumerate(LONG) for name in names if name.endswith(end)}
    items.sort(key=lambda item: first.get(item.path.as_posix(), len(LONG)))


def pytest_collection_finish():
    """Spares the garbage collector what stays to the end: modules, and tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_process(monkeypatch):
    """Trains in one process unless a test asks for others: by default the machine's speed decides.

    Numbers are the same, but a function that counts its calls does so in each process for itself.
    """
    monkeypatch.setattr("engram.cohort.trainer.workers._PAYS", float("inf"))


@pytest.fixture(scope="session")
def _folders(tmp_path_factory):
    """A folder for tests without one of their own: the next is a new one once one is used."""
    return [tmp_path_factory.mktemp("used")]


@pytest.fixture(autouse=True)
def _elsewhere(request, monkeypatch, tmp_path_factory, _folders):
    """Runs every test in an empty folder, so that none writes into the source.

    To make one for each test takes longer than most tests do.
    """
    if "tmp_path" in request.fixturenames:
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
        return
    if any(_folders[-1].iterdir()):
        _folders.append(tmp_path_factory.mktemp("used"))
    monkeypatch.chdir(_folders[-1])


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch):
    """Waits for no disk: what a test writes need not outlive the machine."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(autouse=True)
def _as_found(monkeypatch):
    """Undoes what a test leaves in the process: who it is to Flower, and how it logs."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, getattr(TaskIdentity, name))
    loggers = [logging.getLogger(name) for name in ("flwr", "flwr.engram")]
    # Pytest logs beside a logger that does not propagate, and would stay there if it did again.
    logged = [(logger.level, logger.propagate, [*logger.handlers]) for logger in loggers]
    yield
    os.environ.pop("ENGRAM_LOG", None)
    for logger, (level, propagates, handlers) in zip(loggers, logged, strict=True):
        logger.setLevel(level)
        logger.propagate, logger.handlers = propagates, handlers


@pytest.fixture
def drawn():
    """Lets a test of figures draw them."""


@pytest.fixture(autouse=True)
def _blank_figures(request, monkeypatch):
    """Saves a blank figure in place of each: to draw one takes long, and tests of figures do."""
    if "drawn" in request.fixturenames:
        return
    from matplotlib.figure import Figure

    save = Figure.savefig

    def blank(figure, *where, **how):
        save(Figure(figsize=(1, 1)), *where, **how)

    monkeypatch.setattr(Figure, "savefig", blank)


@pytest.fixture
def warnings_of_engram(caplog, monkeypatch):
    """Lets pytest see our log: Flower's logger keeps it from the root logger."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, "flwr.engram")
    return caplog


@pytest.fixture
def lines(monkeypatch):
    """The warnings that are logged, and nothing else of a log that would be large."""
    found = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())
    log = logging.getLogger("flwr.engram")
    monkeypatch.setattr(log, "handlers", [handler])
    monkeypatch.setattr(log, "propagate", False)
    return found


@pytest.fixture
def plug_ins(monkeypatch):
    """Forgets what a test's plug-ins have registered, and that there were any."""
    from tests.registries import forgotten

    with forgotten(monkeypatch):
        yield
