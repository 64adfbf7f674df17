"""The SuperLink's own entry: its arguments, its database, and how it starts the coordinator."""

import contextlib
import importlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import timedelta

import grpc
import httpx
import pytest

from engram.link.flower import nodes_over_http, run_superexec, run_superlink
from engram.link.server import superlink
from engram.link.server.live_certificates import Dated
from engram.link.server.superexec import start
from engram.link.server.superlink import compact, main, serve, serve_anyone, start_watched
from engram.server.replies import GuardedFleet
from engram.server.status import FLEET, STARTER
from engram.settings.errors import Refused
from engram.wire.bundle import PIECE
from tests.processes.support import free_port

FLOWER = "flwr.superlink.cli.flower_superlink"
TASKS = "flwr.supercore.corestate.sql_corestate"


# --- Arguments -------------------------------------------------------------------------------


@pytest.fixture
def given(monkeypatch):
    """What Flower's command would be run with."""
    found = {}
    monkeypatch.setattr(
        superlink, "run_superlink", lambda words, **more: found.update(more, words=words)
    )
    return found


def test_flowers_arguments_are_handed_on(given, tmp_path):
    main(["--database", "some.db", "--host", "127.0.0.1", "--insecure"])
    assert given["words"] == ["--database", "some.db", "--host", "127.0.0.1", "--insecure"]
    assert given["superexec"].func is start_watched
    assert given["superexec"].args[1]["--host"] == "127.0.0.1"
    assert given["serve"] is serve
    assert given["authentication"] is Dated
    assert given["largest"] > 2 * PIECE
    guard = given["fleet"]("Flower's")
    assert isinstance(guard, GuardedFleet)
    assert guard._mebibytes == 1024
    assert (tmp_path / "some.db").is_file()
    main(["--open-control", "--max-reply", "7", "--database", "some.db"])
    assert given["serve"] is serve_anyone
    assert given["fleet"]("Flower's")._mebibytes == 7


def keep_http_fleet(monkeypatch):
    """Puts Flower's HTTP Fleet API back after a test; returns whether this Flower has one."""
    if not nodes_over_http():
        return False
    router = importlib.import_module("flwr.superlink.routers.fleet.router")
    monkeypatch.setattr(router, "fleet_handlers", router.fleet_handlers)
    return True


@pytest.fixture
def flower(monkeypatch):
    """Flower's command, which does nothing; what is replaced in Flower is put back after a test."""
    names = (FLOWER, TASKS, "flwr.supercore.sql_mixin", "flwr.supercore.grpc")
    modules = [importlib.import_module(name) for name in names]
    before = [dict(vars(module)) for module in modules]
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_FLEET_API", "0")
    monkeypatch.setattr(modules[0], "flower_superlink", lambda: None)
    yield modules[0]
    for module, names in zip(modules, before, strict=True):
        vars(module).update(names)


def test_flower_has_what_is_replaced_in_it(monkeypatch, flower):
    database = importlib.import_module("flwr.supercore.sql_mixin")
    transport = importlib.import_module("flwr.supercore.grpc")
    run, served = [], []
    over_http = keep_http_fleet(monkeypatch)
    flower.flower_superlink = lambda: run.append(list(sys.argv))
    before = dict(vars(flower))
    run_superlink(
        ["--some", "words"],
        serve=lambda app, **options: served.append((app, options)),
        superexec=lambda command, **options: ("watched", command, options),
        fleet=lambda fleet: ("guarded", fleet),
        http_fleet=lambda app, fault: ("bounded", app),
        authentication=lambda flower: ("dated", flower.state_factory),
        credentials=lambda key, certificate: ("shown", key, certificate),
        largest=123,
        pragmas={"mmap_size": "0"},
        begins=120.0,
    )
    assert run == [["flower-superlink", "--some", "words"]]
    command = flower._get_superexec_command("here:1", None, None, 7, False)
    assert command[1:4] == ["--insecure", "--runtime-api-address", "here:1"]
    assert flower.subprocess.Popen(command, close_fds=True) == (
        *("watched", command),
        {"close_fds": True},
    )
    assert flower.subprocess.TimeoutExpired is subprocess.TimeoutExpired
    made = {"state_factory": 1, "objectstore_factory": 2, "enable_supernode_auth": True}
    kind, fleet = flower.FleetServicer(**made)
    assert (kind, vars(fleet).items() >= made.items()) == ("guarded", True)
    assert flower.NodeAuthServerInterceptor("states") == ("dated", "states")
    assert os.environ["FLWR_INTERNAL_GRPC_FLEET_API"] == "1"
    flower.uvicorn.run(app="app", port=1)
    assert served == [(("bounded", "app") if over_http else "app", {"port": 1})]
    assert database.SQLITE_PRAGMAS[-1] == ("mmap_size", "0")
    assert flower.GRPC_MAX_MESSAGE_LENGTH == 123
    shown = transport.grpc.ssl_server_credentials(((b"key", b"crt"),), root_certificates=b"")
    assert shown == ("shown", b"key", b"crt")
    assert transport.grpc.server is grpc.server
    changed = {name for name, value in before.items() if getattr(flower, name) is not value}
    assert len(changed) == 5  # what is replaced in the command


@pytest.mark.parametrize(("seconds", "begins"), [(115, True), (125, False)])
def test_a_coordinator_has_two_minutes_to_begin_and_one_between_signs_of_life(
    given, flower, tmp_path, monkeypatch, seconds, begins
):
    from flwr.superlink.config_loader import (
        get_federation_manager,
        get_objectstore_linkstate_factories,
    )

    keep_http_fleet(monkeypatch)
    main(["--database", "some.db"])
    run_superlink(given.pop("words"), **given)
    tasks, passed = importlib.import_module(TASKS), 0
    now = tasks.now
    monkeypatch.setattr(tasks, "now", lambda: now() + timedelta(seconds=passed))
    database = str(tmp_path / "some.db")
    state = get_objectstore_linkstate_factories(database, get_federation_manager())[1].state()
    task = state.create_task("flwr-serverapp", 1)
    token = state.claim_task(task)
    passed = seconds
    assert state.activate_task(task) == begins
    passed += 55
    assert state.acknowledge_task_heartbeat(task) == begins
    passed += 65
    assert state.get_task_by_token(token) is None


# --- The database ----------------------------------------------------------------------------


def fill(path, size):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS t (x BLOB)")
        connection.execute("INSERT INTO t VALUES (?)", (bytes(size),))
    connection.close()


def empty(path):
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("DELETE FROM t")
    connection.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "superlink.db"


def test_a_large_old_database_is_compacted_and_stays_small(path):
    fill(path, 2**22)
    empty(path)
    assert path.stat().st_size > 2**22
    for _ in range(2):
        compact(path)
        assert path.stat().st_size < 2**16
        fill(path, 2**22)
        empty(path)
        assert path.stat().st_size < 2**16


def test_what_is_in_a_database_is_kept(path):
    fill(path, 10)
    empty(path)
    fill(path, 20)
    compact(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT length(x) FROM t").fetchall() == [(20,)]
    connection.close()


def test_a_database_in_use_is_served_as_it_is(path, warnings_of_engram):
    fill(path, 10)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    compact(path)
    connection.close()
    assert "superlink.db is not compacted: database is locked" in warnings_of_engram.text


def test_a_file_that_is_no_database_is_refused(path):
    path.write_bytes(b"no database at all, but long enough to be looked at" * 20)
    before = path.read_bytes()
    with pytest.raises(Refused, match=r"cannot be read \(file is not a database\): move it away"):
        compact(path)
    assert path.read_bytes() == before


# --- The coordinator -------------------------------------------------------------------------

PRINT = """
import os, sys
from types import SimpleNamespace
from flwr.common.args import try_obtain_flwr_app_token
at = sys.argv.index("--token-file")
words = open("/proc/self/cmdline").read() if os.path.exists("/proc") else ""
kept = os.stat(sys.argv[at + 1])
print(try_obtain_flwr_app_token(SimpleNamespace(token_file=sys.argv[at + 1])))
print("s3cret" in words + str(os.environ), oct(kept.st_mode & 0o777), kept.st_nlink, sys.argv[-1])
"""


def test_a_token_reaches_the_coordinator_and_nobody_else(tmp_path, monkeypatch):
    own = tmp_path / "tmp"
    own.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own))
    (tmp_path / "flwr-serverapp").write_text(PRINT)
    words = [sys.executable, str(tmp_path / "flwr-serverapp"), "--token", "s3cret", "--insecure"]
    process = start(words, stdout=subprocess.PIPE)
    said, _ = process.communicate(timeout=60)
    assert said.decode().split() == ["s3cret", "False", "0o600", "0", "--insecure"]
    assert "s3cret" not in " ".join(map(str, process.args))
    assert not list(own.iterdir())


ONCE_KILLED = """
import os, sys, time
from pathlib import Path
from engram.core.machine import end_with_parent
tries = Path(sys.argv[1])
tries.write_text(tries.read_text() + Path(sys.argv[sys.argv.index("--token-file") + 1]).read_text())
if len(tries.read_text()) < 12:
    os.kill(os.getpid(), 9)
end_with_parent()
time.sleep(0.5)
tries.write_text(tries.read_text() + "!")
sys.exit(3)
"""


def test_a_coordinator_that_is_killed_is_started_again_with_its_token(tmp_path, caplog):
    # The first is killed, and the second ends by itself: it failed, which is its own affair.
    (tmp_path / "app").write_text(ONCE_KILLED)
    tries = tmp_path / "tries"
    tries.write_text("")
    before = set(threading.enumerate())
    process = start([sys.executable, tmp_path / "app", str(tries), "--token", "s3cret"])
    assert process.wait(60) == -9
    while set(threading.enumerate()) - before:
        time.sleep(0.01)
    assert tries.read_text() == "s3cret" * 2 + "!"  # it outlives who started it again
    assert caplog.messages == [f"{sys.executable} was killed: it is started again"]


@pytest.mark.parametrize(("sign", "times"), [("SIGKILL", 3), ("SIGTERM", 1)])
def test_what_is_always_killed_and_what_is_ended_is_left(tmp_path, sign, times):
    (tmp_path / "app").write_text(
        "import os, signal, sys\n"
        "open(sys.argv[1], 'a').write('.')\n"
        f"os.kill(os.getpid(), signal.{sign})\n"
    )
    before = set(threading.enumerate())
    words = [sys.executable, tmp_path / "app", str(tmp_path / "tries"), "--token", "s3cret"]
    start(words, again=2)
    while set(threading.enumerate()) - before:
        time.sleep(0.01)
    assert (tmp_path / "tries").read_text() == "." * times


def test_flowers_superexec_starts_it_so_and_waits_for_a_slow_server(monkeypatch):
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import ExecutionSpec, subprocess_executor

    started = []
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess_executor.subprocess)
    command = importlib.import_module("flwr.supercore.cli.flower_superexec")
    spec = ExecutionSpec(
        task_type=TaskType.SERVER_APP,
        runtime_api_address="127.0.0.1:1",
        token="s3cret",
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=1,
        suppress_output=True,
        task_id=1,
    )
    loop = importlib.import_module("flwr.supercore.superexec.run_superexec")
    monkeypatch.setattr(loop, "make_simple_http_retry_invoker", loop.make_simple_http_retry_invoker)
    kind, beats, slow = subprocess_executor.SubprocessExecutor, [], []
    monkeypatch.setattr(kind, "reconcile", kind.reconcile)

    def superexec():
        kind().reconcile()
        kind().launch(spec)
        invoker = loop.make_simple_http_retry_invoker()
        invoker.wait_function = lambda seconds: None
        invoker.invoke(answer_late)
        with pytest.raises(httpx.ConnectError):
            invoker.invoke(refuse)

    def answer_late():
        if len(slow) < 9:
            slow.append(1)
            raise httpx.ConnectTimeout("_ssl.c:999: The handshake operation timed out")

    def refuse():
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")

    monkeypatch.setattr(command, "flower_superexec", superexec)
    run_superexec(
        lambda words, **options: started.append((words, options)), lambda: beats.append(1)
    )
    ((words, options),) = started
    assert (beats, len(slow)) == ([1], 9)
    assert words[words.index("--token") + 1] == "s3cret"
    assert words[0] == "flwr-serverapp"
    assert options == {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@pytest.fixture
def watched(monkeypatch, tmp_path):
    """Starts a script as what starts runs; returns it, and what this process ends with."""
    ends = []

    def begin(script, looks=3, patience=0.0, answers=lambda given: True, part=STARTER):
        alive = iter([""] * looks)

        def silence(path, what):
            return next(alive, what) if path.name == part else ""

        monkeypatch.setattr(superlink, "silence", silence)
        monkeypatch.setattr(superlink, "_LOOK", 0.01)
        monkeypatch.setattr(superlink, "_ENDS", patience)
        monkeypatch.setattr(superlink, "answers", answers)
        monkeypatch.setattr(superlink.os, "_exit", ends.append)
        before = set(threading.enumerate())
        (tmp_path / "python").write_text(f"#!{sys.executable}\n{script}")
        (tmp_path / "python").chmod(0o700)
        with monkeypatch.context() as patch:
            patch.setattr(superlink.sys, "executable", str(tmp_path / "python"))
            process = start_watched(tmp_path, {}, ["flower-superexec", "--some", "words"])
        (thread,) = set(threading.enumerate()) - before
        return process, thread, ends

    return begin


@pytest.mark.parametrize("status", [0, 1, -9])
def test_a_server_ends_with_status_1_after_what_starts_runs(watched, status, caplog):
    end = f"sys.exit({status})" if status >= 0 else f"os.kill(os.getpid(), {-status})"
    script = f"import os, sys; {end}"
    process, thread, ends = watched(script, looks=10**6)
    thread.join(60)
    assert (process.returncode, ends) == (status, [1])
    assert caplog.messages == [f"what starts runs has died ({status}): start this server again"]


@pytest.mark.parametrize("part", [STARTER, FLEET])
def test_a_server_ends_with_status_1_when_a_part_has_been_silent_for_long(watched, part):
    """Whatever asking what nodes connect to raises: the watch goes on."""

    def answers(given):
        raise RuntimeError("can't start new thread")

    more = {"answers": answers} if part == FLEET else {}
    process, thread, ends = watched("import time; time.sleep(600)", part=part, **more)
    thread.join(60)
    assert (process.poll(), ends) == (None, [1])
    process.kill()
    process.wait()


def test_a_server_that_ends_by_itself_has_the_status_of_its_end(watched):
    process, thread, ends = watched("import time; time.sleep(600)", looks=10**6)
    process.terminate()
    thread.join(60)
    assert (process.wait(60), ends) == (-15, [])


def test_a_server_that_ends_while_what_starts_runs_was_told_to_as_well_has_its_status(watched):
    """By whoever signals all processes of a service, as systemd does."""
    process, thread, ends = watched("", looks=10**6, patience=300.0)
    assert process.wait(60) == 0
    process.terminate()
    thread.join(60)
    assert (thread.is_alive(), ends) == (False, [])


def test_a_server_that_is_to_end_does_not_wait_for_an_endless_answer(tmp_path):
    (tmp_path / "server.py").write_text(ENDLESS)
    words = [sys.executable, str(tmp_path / "server.py"), str(port := free_port())]
    with (
        subprocess.Popen(words, env={**os.environ, "PYTHONSAFEPATH": "1"}) as process,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        while True:
            with contextlib.suppress(httpx.ConnectError):
                with client.stream("GET", f"http://127.0.0.1:{port}") as answer:
                    assert next(answer.iter_raw()) == b"on and on"
                    process.terminate()
                    assert process.wait(25) == -15
                break


ENDLESS = """
import asyncio, sys
from engram.link.server.superlink import serve_anyone

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"on and on", "more_body": True})
        await asyncio.sleep(1)

serve_anyone(app, host="127.0.0.1", port=int(sys.argv[1]), lifespan="off")
"""


def test_health_is_that_of_all_parts(given, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(superlink, "serve_counters", lambda *words: asked.append(words))
    main(["--database", str(tmp_path / "some.db"), "--metrics-port", "7"])
    ((_, port, fault),) = asked
    assert port == 7
    assert fault() == (
        "no sign of life of what starts runs yet; no sign of life of what nodes connect to yet"
    )
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / STARTER).touch()
    (tmp_path / "flwr" / FLEET).touch()
    assert fault() == ""


def test_a_busy_machines_database_is_waited_for():
    # In Flower's order, by which the last setting of a name counts: in milliseconds.
    connection = sqlite3.connect(":memory:")
    flowers = importlib.import_module("flwr.supercore.sql_mixin").SQLITE_PRAGMAS
    for name, value in (*flowers, *superlink._DATABASE.items()):
        connection.execute(f"PRAGMA {name} = {value};")
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (60_000,)
    connection.close()
