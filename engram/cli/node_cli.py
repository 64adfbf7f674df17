"""The client's subcommands: the node, and its clients' memories."""

import gc
import json
import logging
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table

from engram.cli import work
from engram.cli.options import (
    Format,
    JsonInstead,
    Policy,
    Port,
    Site,
    State,
    argument,
    flag,
    option,
)
from engram.cli.site_cli import state_of
from engram.client.encrypted_file import new_key, read_key
from engram.data.source import Source
from engram.link.console import console
from engram.link.credentials import NodeCredentials, read_node
from engram.link.node.errands import check_there
from engram.link.node.errands import leave as give_up_key
from engram.link.node.node import only_one, run_node, run_together
from engram.settings.errors import Refused, say
from engram.settings.fields import wrong_values
from engram.settings.files import refusing, replace_file
from engram.settings.logs import begin_log
from engram.settings.plugins import load_plugins
from engram.settings.run import MachineSettings
from engram.sites.audit import AUDIT, EXPORTED, Audit
from engram.sites.policy import in_force, policy_file

if TYPE_CHECKING:
    from engram.client.disk_memory import DiskStore

_FEW = 8  # most numbers shown in a line
_END = 4  # seconds that nodes may take to end, which leave all as a crash would at worst

_log = logging.getLogger("flwr.engram")

app = typer.Typer()
memory = typer.Typer(no_args_is_help=True)
app.add_typer(memory, name="memory")

_Key = Annotated[Path | None, option("FILE", "Encrypt memories, replies and contents by this key.")]


@app.command()
def node(
    folders: Annotated[
        list[Path],
        argument(
            "FOLDER...",
            "A client's folder, or several, whose nodes then share one process and memory.",
        ),
    ],
    state: State = None,
    data: Annotated[
        str | None,
        option(
            "DATASET",
            "This client's own data, such as npz:PATH; by default its share of the run's.",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            f"This machine's own value of {', '.join(MachineSettings.all_keys())}.",
            "--set",
            "-s",
        ),
    ] = None,
    memory_key: _Key = None,
    memory_limit: Annotated[
        float, option("MIB", "Most MiB of a run's memories; 0: no bound.", min=0)
    ] = 0,
    memory_days: Annotated[
        float, option("DAYS", "Days until unchanged runs are forgotten; 0: never.", min=0)
    ] = 0,
    max_message: Annotated[
        float, option("MIB", "Largest message; 0: an eighth of the free memory.", min=0)
    ] = 0,
    policy: Policy = None,
    describe: Annotated[
        bool,
        flag(
            "--describe/--no-describe",
            "Whether engram schema learns names, types, values of text and ranges of --data.",
        ),
    ] = True,
    rows_changed: Annotated[
        bool,
        flag(
            "--rows-changed",
            "Go on with trainings that have learned from other rows than there are now.",
        ),
    ] = False,
    log_json: Annotated[bool, flag("--log-json", "Log lines of JSON.")] = False,
    metrics_port: Port = 0,
) -> None:
    """Serve a federation as one of its clients, or several, until it is stopped."""
    if len(folders) > 1 and (state is not None or metrics_port):
        raise Refused(
            f"--state and --metrics-port must be given for one node, got {len(folders)} folders: "
            "start it by itself"
        )
    own = _machine(sets or []) | {"memory-limit": memory_limit, "memory-days": memory_days}
    if not describe:
        own["describes"] = False
    if rows_changed:
        own["rows-changed"] = True
    if data is not None:
        own["data"] = str(_absolute(data))
    key = read_key(memory_key) if memory_key is not None else None
    if memory_key is not None:
        own["memory-key"] = str(memory_key.absolute())
    nodes = [_set_up(folder, own, state=state, policy=policy) for folder in folders]
    begin_log(as_json=log_json)
    stop = threading.Event()

    def end(*_: object) -> None:
        stop.set()
        signal.alarm(_END)  # the system's end of what takes longer, such as a call that hangs

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    runs, most = dict[str, Callable[[], None]](), int(max_message * 2**20)
    serve = partial(
        run_node, key=key, metrics_port=metrics_port, forked=len(folders) > 1, stop=stop
    )
    for folder, (credentials, config) in zip(folders, nodes, strict=True):
        _tell(credentials, policy or folder)
        where = Path(config["state"])
        runs[str(folder)] = partial(serve, credentials, where, config, max_message=most)
    run_together(runs)
    gc.freeze()  # or the interpreter's end takes seconds to look through all that is there


def _set_up(
    folder: Path, own: Mapping[str, Any], *, state: Path | None, policy: Path | None
) -> tuple[NodeCredentials, dict[str, Any]]:
    credentials = read_node(folder)
    check_there(credentials)
    config = {
        "partition-id": credentials.partition_id,
        "num-partitions": credentials.num_partitions,
        "state": str((state or folder / "state").absolute()),
        "policy": str((policy or folder).absolute()),
        "asked-by": f"{credentials.superlink}, by its certificate",
        "identity": str(folder.absolute()),
        **own,
    }
    if "data-dir" in own:
        config["data-dir"] = str(Path(own["data-dir"]).absolute())
        if not Path(config["data-dir"]).is_dir():
            raise Refused(
                f"data-dir {config['data-dir']} is not there: name the folder of the data"
            )
    in_force(policy or folder, state or folder / "state")  # or it is refused
    work.site_schema(folder)
    return credentials, config


def _tell(credentials: NodeCredentials, policy: Path) -> None:
    _log.info("policy: %s", policy_file(policy) or "none of its own, so that defaults hold")
    _log.info("connecting to the server at %s", credentials.superlink)


@app.command()
def leave(folder: Site) -> None:
    """Leave a federation: this client's key is refused, and no run counts on it."""
    credentials = read_node(folder)
    give_up_key(credentials)
    say(
        f"{credentials.name}: its key is refused from now on",
        f"Its memories stay here, until: engram memory forget {shlex.quote(str(folder))}",
    )


def _machine(sets: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in sets:
        key, equals, found[key] = text.partition("=")
        if key not in MachineSettings.all_keys() or not equals:
            raise Refused(
                f"--set must be KEY=VALUE with one of {', '.join(MachineSettings.all_keys())} (the "
                f"coordinator sets everything else), got {text!r}"
            )
    try:
        return MachineSettings.model_validate(found).model_dump(by_alias=True, exclude_unset=True)
    except ValidationError as error:
        raise Refused(*wrong_values(error)) from error


def _absolute(data: str) -> Source:
    source = Source(data)
    if source.is_file and not source.path.exists():
        raise Refused(
            f"the data {source.place} are not there: name a file or folder, such as npz:PATH"
        )
    return source.absolute()


# --- Memories ------------------------------------------------------------------------------


@memory.callback()
def _memory() -> None:
    """Manage the memories on a node's disk."""


_Training = Annotated[str, argument("TRAINING", "Its name in `engram memory list`.")]
_Client = Annotated[int, argument("CLIENT", "The client's number.")]


@memory.command("list")
def list_(folder: Site, state: State = None, as_json: JsonInstead = False) -> None:
    """List memories, latest training first: training, client, method, round, size, date, run."""
    root = _root(folder, state)
    found = work.kept(root)
    if as_json:
        print(json.dumps([entry._asdict() for entry in found]))
        return
    console().print(work.listed(found) if found else "nothing is remembered here")


@memory.command()
def show(
    folder: Site, training: _Training, client: _Client, state: State = None, memory_key: _Key = None
) -> None:
    """Show a client's newest memory: names, shapes, and norms, or the numbers of short vectors.

    A column of a table has its coefficient, the limits of its confidence interval, the client's
    own estimate, and the shared one.
    """
    tensors = _newest(folder, state, training, client, memory_key)
    methods = {entry.training: entry.method for entry in work.kept(_root(folder, state))}
    method = work.METHODS.get(methods.get(training, ""))
    columns = method.remembered if method else ()
    table = Table("name", "shape", *(columns or ["norm or numbers"]))
    for name, leaf in sorted(tensors.items()):
        few = leaf.ndim == 1 and len(leaf) <= _FEW
        shown = [f"{value:.6g}" for value in (leaf.tolist() if few else [float(leaf.norm())])]
        table.add_row(name, str(tuple(leaf.shape)), *(shown if columns else ["  ".join(shown)]))
    console().print(table)


@memory.command()
def export(
    folder: Site,
    training: _Training,
    client: _Client,
    out: Annotated[Path, argument("OUT", "A new folder, or a new .safetensors file.")],
    state: State = None,
    memory_key: _Key = None,
    format_: Format = "safetensors",
    release: Annotated[
        Path | None, option("DIR", "A release of the training, where the policy demands one.")
    ] = None,
) -> None:
    """Write the model that serves a client into a folder, or its memory to a file, decrypted.

    The folder is as `engram export` writes it, and needs no coordinator.
    """
    if out.exists():
        raise Refused(f"{out} is there already: name a new one")
    work.check_released_at_site(folder, state_of(folder, state), release, training, client)
    where = str(out.absolute())
    line = {"kind": EXPORTED, "training": training, "client": client, "folder": where}
    if out.suffix == ".safetensors":
        memory = _newest(folder, state, training, client, memory_key)
        _audit(folder, state).append(line, trained=False)
        with refusing(f"{out} cannot be written"):
            replace_file(out, work.tensors_to_bytes(memory))
        say(f"{out}: memory of client {client}")
        return
    load_plugins()
    chosen, root = work.check_format(format_), _root(folder, state)
    if not (place := root / training).is_dir():
        raise Refused(f"{root} has no training {training!r}: see `engram memory list {folder}`")
    store = _store(place, memory_key)
    package = work.remembered_package(work.read_training(place), client, store, release)
    _audit(folder, state).append(line, trained=False)
    package.write(out, chosen)
    say(f"{out}: model of client {client}; next: engram predict {out} ROWS")


@memory.command()
def forget(
    folder: Site,
    training: Annotated[str | None, argument("[TRAINING]", "Default: all trainings.")] = None,
    state: State = None,
) -> None:
    """Remove the memories of a training, or of all. The node must not be running.

    What was exported of them, as far as the node's log says, is named, and stays.
    """
    root = _root(folder, state)
    there = {path.name: path for path in root.glob("*") if path.is_dir()}
    if training is not None and training not in there:
        raise Refused(f"{root} has no training {training!r}: see `engram memory list {folder}`")
    with only_one(root.parent):
        removed = list(there.values()) if training is None else [there[training]]
        for path in [*removed, *root.parent.glob("contents*"), *root.parent.glob("replies*")]:
            shutil.rmtree(path)  # the last ones, which its node keeps, of whatever training
    names = ", ".join(path.name for path in removed)
    say(f"forgotten: {names or 'nothing'}")
    forgotten = {path.name for path in removed}
    for line in _audit(folder, state).read().lines:
        if line.get("kind") == EXPORTED and line.get("training") in forgotten:
            say(f"exported from {line['training']}, delete it, too: {line['folder']}")


@memory.command()
def encrypt(
    folder: Site,
    memory_key: Annotated[Path, option("FILE", "A key from `engram memory new-key`.")],
    state: State = None,
) -> None:
    """Encrypt memories that were written without a key. The node must not be running."""
    root = _root(folder, state)
    with only_one(root.parent):
        trainings = sorted(path for path in root.glob("*") if path.is_dir())
        stores = [_store(path, memory_key) for path in trainings]
        for store in stores:
            store.unencrypted()  # before anything is encrypted
        count = sum(store.encrypt() for store in stores)
    say(f"encrypted: {count} memories")


@memory.command("new-key")
def make_key(out: Annotated[Path, argument("FILE", "A new file for the key.")]) -> None:
    """Make a key to encrypt memories with. If it is lost, they cannot be read any more."""
    new_key(out)
    say(f"{out}: keep a copy elsewhere")


def _audit(folder: Path, state: Path | None) -> Audit:
    return Audit(state_of(folder, state) / AUDIT)


def _root(folder: Path, state: Path | None) -> Path:
    return state_of(folder, state) / "memory"


def _store(training: Path, key: Path | None) -> "DiskStore":
    return work.DiskStore(training, key=read_key(key) if key else None)


def _newest(
    folder: Path, state: Path | None, training: str, client: int, key: Path | None
) -> dict[str, Any]:
    root = _root(folder, state)
    store = _store(root / training, key)
    versions = store.versions(client)
    if not versions:
        raise Refused(f"{root} has no memory of client {client} in training {training}")
    return store.read(client, max(versions))
